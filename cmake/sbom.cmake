# lockstep.spdx.json: which versions of other software this build contains or needs (SPDX 2.3).

# The time that archives and this file carry, so that the same sources give the same bytes: SOURCE_DATE_EPOCH, else that of the last
# commit, else that of the changelog.
function(lockstep_source_date result)
  set(date "$ENV{SOURCE_DATE_EPOCH}")
  if(NOT date)
    execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} log -1 --format=%ct
      OUTPUT_VARIABLE date OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(NOT date)
    file(TIMESTAMP ${PROJECT_SOURCE_DIR}/docs/changelog.md date "%s" UTC)
  endif()
  set(${result} ${date} PARENT_SCOPE)
endfunction()

# Adds a package, and how ours relates to it.
function(lockstep_sbom_package name version license relation)
  set(version_line "")
  if(version)
    set(version_line "\n      \"versionInfo\": \"${version}\",")
  endif()
  string(CONFIGURE [[
    {
      "SPDXID": "SPDXRef-@name@",
      "name": "@name@",@version_line@
      "licenseConcluded": "@license@",
      "licenseDeclared": "@license@",
      "copyrightText": "NOASSERTION",
      "downloadLocation": "NOASSERTION",
      "filesAnalyzed": false
    }]] package @ONLY)
  string(CONFIGURE [[
    { "spdxElementId": "SPDXRef-lockstep", "relationshipType": "@relation@", "relatedSpdxElement": "SPDXRef-@name@" }]] line @ONLY)
  set(sbom_packages "${sbom_packages},${package}" PARENT_SCOPE)
  set(sbom_relations "${sbom_relations},${line}" PARENT_SCOPE)
endfunction()

# The whole version, with what it was built for: 2.11.0+cpu, 2.11.0+cu130.
set(libtorch_version ${LibTorch_VERSION})
foreach(file build-version version.py)
  if(EXISTS ${LibTorch_FOLDER}/${file})
    file(STRINGS ${LibTorch_FOLDER}/${file} line REGEX "[0-9]\\.[0-9]+\\.[0-9]+\\+[a-z0-9.]+" LIMIT_COUNT 1)
    if(line MATCHES "([0-9]\\.[0-9]+\\.[0-9]+\\+[a-z0-9.]+)")
      set(libtorch_version ${CMAKE_MATCH_1})
    endif()
  endif()
endforeach()

set(sbom_packages "")
set(sbom_relations "")
lockstep_sbom_package(LibTorch "${libtorch_version}" BSD-3-Clause DYNAMIC_LINK)
lockstep_sbom_package(fmt "${fmt_VERSION}" MIT DYNAMIC_LINK)
# LibTorch's headers bring an fmt of their own, which the torch half is compiled with.
if(EXISTS ${LibTorch_FOLDER}/include/fmt/base.h)
  file(STRINGS ${LibTorch_FOLDER}/include/fmt/base.h line REGEX "^#define FMT_VERSION +[0-9]+")
  string(REGEX REPLACE ".* ([0-9]+)([0-9][0-9])([0-9][0-9])$" "\\1.\\2.\\3" version "${line}")
  string(REGEX REPLACE "\\.0([0-9])" ".\\1" version "${version}")
  lockstep_sbom_package(fmt-of-LibTorch "${version}" MIT CONTAINS)
endif()
lockstep_sbom_package(nlohmann-json "${nlohmann_json_VERSION}" MIT CONTAINS)
lockstep_sbom_package(tomlplusplus "${tomlplusplus_VERSION}" MIT CONTAINS)
if(LOCKSTEP_IMAGES)
  file(STRINGS ${LOCKSTEP_SPNG_INCLUDE_DIR}/spng.h spng_version REGEX "^#define SPNG_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
  list(TRANSFORM spng_version REPLACE ".* " "")
  list(JOIN spng_version "." spng_version)
  lockstep_sbom_package(libspng "${spng_version}" BSD-2-Clause DYNAMIC_LINK)
  lockstep_sbom_package(libjpeg-turbo "" "IJG AND BSD-3-Clause AND Zlib" DYNAMIC_LINK)  # its header has no version
endif()

lockstep_source_date(LOCKSTEP_SOURCE_DATE)
set(environment_date "$ENV{SOURCE_DATE_EPOCH}")
set(ENV{SOURCE_DATE_EPOCH} ${LOCKSTEP_SOURCE_DATE})
string(TIMESTAMP created "%Y-%m-%dT%H:%M:%SZ" UTC)
set(ENV{SOURCE_DATE_EPOCH} ${environment_date})
string(UUID sbom_id NAMESPACE 6ba7b811-9dad-11d1-80b4-00c04fd430c8 NAME "${PROJECT_VERSION}${created}${sbom_packages}" TYPE SHA1)
configure_file(${CMAKE_CURRENT_LIST_DIR}/lockstep.spdx.json.in ${PROJECT_BINARY_DIR}/lockstep.spdx.json @ONLY)
