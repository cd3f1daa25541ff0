# Installs a build, moves the result, builds a small program against it with nothing but CMAKE_PREFIX_PATH, and runs that; the
# same with nothing but pkg-config. (tests/docs/shell_blocks.py builds examples/consumer.) Looks at how the installed files are
# hardened, and at the list of other software.
# cmake -D source=... -D build=... -D libtorch=... -D work=... -D compiler=... -P package_test.cmake
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)

# The README installs what the quickstart has built: it must build everything that is installed.
file(STRINGS ${source}/examples/quickstart.sh command REGEX "^cmake --build")
string(REGEX REPLACE "^.*--target " "" targets "${command}")
separate_arguments(targets)
execute_process(COMMAND ninja -C ${build} -t commands ${targets} OUTPUT_VARIABLE built COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE scripts ${build}/src/cmake_install.cmake)  # not those that other tests write below the build folder
list(APPEND scripts ${build}/cmake_install.cmake)
set(found 0)
foreach(script ${scripts})
  file(READ ${script} text)
  string(REGEX MATCHALL "\"${build}/(bin|lib|libexec)/[^\"]+\"" installed "${text}")
  foreach(entry ${installed})
    string(REGEX REPLACE "^\"${build}/(.*)\"$" "\\1" file "${entry}")
    math(EXPR found "${found} + 1")
    if(NOT built MATCHES " ${file}[ \n]")
      message(FATAL_ERROR "${file} is installed, but examples/quickstart.sh does not build it: it builds ${targets}")
    endif()
  endforeach()
endforeach()
if(found LESS 2)
  message(FATAL_ERROR "found ${found} installed files in cmake_install.cmake, expected the library and the tool")
endif()

unset(ENV{LOCKSTEP_LIBTORCH})
unset(ENV{LD_LIBRARY_PATH})
file(REMOVE_RECURSE ${work})
run(${CMAKE_COMMAND} --install ${build} --prefix ${work}/installed)
file(RENAME ${work}/installed ${work}/moved)

build_and_run_small(${work}/moved ${work}/build)

# The manual: its links lead to installed pages, and one that does not is found.
set(manual ${work}/moved/share/doc/lockstep)
run(python3 ${CMAKE_CURRENT_LIST_DIR}/manual_links.py ${manual})
file(WRITE ${manual}/docs/planted.md "[x](missing.md)\n")
execute_process(COMMAND python3 ${CMAKE_CURRENT_LIST_DIR}/manual_links.py ${manual} RESULT_VARIABLE result ERROR_VARIABLE output)
if(result EQUAL 0 OR NOT output MATCHES "planted.md: missing.md")
  message(FATAL_ERROR "a link to a page that is not installed was not found: ${output}")
endif()

# The launcher is installed, works from anywhere and runs any program, also one that knows nothing of it.
run(${work}/moved/bin/lockstep run --nproc-per-node 2 -- ${CMAKE_COMMAND} -E true)
run(${work}/moved/bin/lockstep test --nprocs 1 --run-dir ${work})  # finds its probe, which finds the library and LibTorch

# A package of another minor version must not be taken.
file(WRITE ${work}/newer/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(newer LANGUAGES CXX)
find_package(lockstep 99.0)
if(lockstep_FOUND)
  message(FATAL_ERROR \"lockstep 99.0 was found\")
endif()
")
run(${CMAKE_COMMAND} -S ${work}/newer -B ${work}/newer/build -D CMAKE_PREFIX_PATH=${work}/moved -D CMAKE_CXX_COMPILER=${compiler})

# Where LibTorch is missing, the message says where it was looked for, and which others were seen there.
foreach(other old older)
  file(WRITE ${work}/${other}/lib/libtorch_cpu.so "")
  file(WRITE ${work}/${other}/include/torch/version.h
    "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 1\n#define TORCH_VERSION_PATCH 0\n")
endforeach()
file(WRITE ${work}/missing/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(missing NONE)
set(CMAKE_MODULE_PATH ${source}/cmake)
set(LibTorch_HINTS ${work}/nowhere)
find_package(LibTorch 2.11...<2.12 REQUIRED)
")
execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=HOME XDG_CACHE_HOME=${work}/nowhere PATH=
    ${CMAKE_COMMAND} -S ${work}/missing -B ${work}/missing/build "-DCMAKE_PREFIX_PATH=${work}/old;${work}/older"
    -D CMAKE_MAKE_PROGRAM=true
  OUTPUT_QUIET ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " output "${output}")
if(NOT output MATCHES "not found in ${work}/nowhere.*not taken: ${work}/old is 2.1.0, ${work}/older is 2.1.0")
  message(FATAL_ERROR "without LibTorch CMake says: ${output}")
endif()

# A project with another fmt than the headers that LibTorch brings, as docs/packaging.md says.
file(WRITE ${work}/fmt/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(other_fmt LANGUAGES CXX)
find_package(fmt REQUIRED)
find_package(lockstep REQUIRED)
add_library(core STATIC core.cpp)
target_link_libraries(core PUBLIC fmt::fmt)
add_library(closure STATIC closure.cpp)
target_link_libraries(closure PRIVATE lockstep::lockstep)
add_executable(solver main.cpp)
target_link_libraries(solver PRIVATE core closure)
add_executable(mixed core.cpp main.cpp closure.cpp)
target_link_libraries(mixed PRIVATE lockstep::lockstep fmt::fmt)
")
file(WRITE ${work}/fmt/core.h "#include <fmt/format.h>\nvoid put(fmt::memory_buffer& out, int step);\n")
file(WRITE ${work}/fmt/core.cpp "#include \"core.h\"
void put(fmt::memory_buffer& out, int step) { fmt::format_to(std::back_inserter(out), \"step {}\", step); }
")
file(WRITE ${work}/fmt/closure.cpp "#include <lockstep/session.h>
int ranks() { return lockstep::Session::single().world.size(); }
")
file(WRITE ${work}/fmt/main.cpp "#include <cstdio>\n#include \"core.h\"
int ranks();
int main() { fmt::memory_buffer out; put(out, ranks()); std::puts(fmt::to_string(out).c_str()); }
")
run(${CMAKE_COMMAND} -S ${work}/fmt -B ${work}/fmt/build -D CMAKE_PREFIX_PATH=${work}/moved -D CMAKE_CXX_COMPILER=${compiler})
run(${CMAKE_COMMAND} --build ${work}/fmt/build --target solver)
run(${work}/fmt/build/solver)
# The control: in one target the headers of LibTorch's fmt are linked with the other fmt.
execute_process(COMMAND ${CMAKE_COMMAND} --build ${work}/fmt/build --target mixed
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
if(status EQUAL 0 OR NOT output MATCHES "undefined reference to [^\n]*fmt::v12::")
  message(FATAL_ERROR "a target with two fmt ended with ${status}: ${output}")
endif()

# pkg-config, for programs without CMake. The paths have no spaces here.
set(ENV{PKG_CONFIG_PATH} ${work}/moved/lib/pkgconfig)
find_program(pkg_config NAMES pkg-config pkgconf)
if(pkg_config)
  output_of(flags ${pkg_config} --cflags --libs lockstep)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run(${compiler} ${source}/tests/package/small/main.cpp -o ${work}/small ${flags})
  run(${work}/small)
else()
  message("no pkg-config here: lockstep.pc was not tried")
endif()

# Hardened: what is missing in a file, "" if nothing is.
function(missing_hardening file result)
  output_of(elf readelf -hldW --dyn-syms ${file})
  set(missing "")
  foreach(expected
      "GNU_RELRO"                        # relocations are read-only after loading
      "FLAGS[^\n]*(BIND_NOW|NOW)"        # all of them
      "GNU_STACK[^\n]* RW "              # no executable stack
      "Type: +DYN "                      # position independent
      "__stack_chk_fail"                 # stack protector
      "__[a-z]+_chk@")                   # _FORTIFY_SOURCE
    if(NOT elf MATCHES "${expected}")
      string(APPEND missing " ${expected}")
    endif()
  endforeach()
  set(${result} "${missing}" PARENT_SCOPE)
endfunction()
file(STRINGS ${build}/CMakeCache.txt debug REGEX "^CMAKE_BUILD_TYPE:[A-Z]+=Debug")
set(files bin/lockstep lib/liblockstep.so libexec/lockstep/lockstep-probe)
if(debug)
  message("a Debug build is not hardened")
  set(files)
endif()
foreach(file IN LISTS files)
  missing_hardening(${work}/moved/${file} missing)
  if(missing)
    message(FATAL_ERROR "${file} is not hardened, not found:${missing}")
  endif()
endforeach()
# The control: a program that was not asked to be.
file(WRITE ${work}/plain.cpp "int main() {}\n")
run(${compiler} -no-pie -Wl,-z,norelro -Wl,-z,execstack ${work}/plain.cpp -o ${work}/plain)
missing_hardening(${work}/plain missing)
string(REGEX MATCHALL " [^ ]" count "${missing}")
list(LENGTH count count)
if(count LESS 6)
  message(FATAL_ERROR "a program without hardening lacks only:${missing}")
endif()

# The list of other software has the versions that the headers have.
file(READ ${work}/moved/share/doc/lockstep/lockstep.spdx.json sbom)
string(JSON spdx GET "${sbom}" spdxVersion)
string(JSON count LENGTH "${sbom}" packages)
math(EXPR last "${count} - 1")
foreach(i RANGE ${last})
  string(JSON name GET "${sbom}" packages ${i} name)
  string(JSON version_of_${name} ERROR_VARIABLE none GET "${sbom}" packages ${i} versionInfo)
endforeach()
file(WRITE ${work}/versions.cpp "#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <toml++/impl/version.h>
#include <torch/headeronly/version.h>
fmt FMT_VERSION
nlohmann-json NLOHMANN_JSON_VERSION_MAJOR.NLOHMANN_JSON_VERSION_MINOR.NLOHMANN_JSON_VERSION_PATCH
tomlplusplus TOML_LIB_MAJOR.TOML_LIB_MINOR.TOML_LIB_PATCH
LibTorch TORCH_VERSION_MAJOR.TORCH_VERSION_MINOR.TORCH_VERSION_PATCH
")
output_of(versions ${compiler} -E -P -idirafter ${libtorch}/include ${work}/versions.cpp)
if(NOT versions MATCHES "\nfmt ([0-9]+)\n")
  message(FATAL_ERROR "fmt's header has no version")
endif()
math(EXPR fmt "${CMAKE_MATCH_1} / 10000")
math(EXPR fmt_minor "${CMAKE_MATCH_1} / 100 % 100")
math(EXPR fmt_patch "${CMAKE_MATCH_1} % 100")
string(REGEX REPLACE "\nfmt [0-9]+" "\nfmt ${fmt}.${fmt_minor}.${fmt_patch}" versions "${versions}")
foreach(name fmt nlohmann-json tomlplusplus LibTorch)
  if(NOT versions MATCHES "\n${name} ([0-9 .]+)")
    message(FATAL_ERROR "the header of ${name} has no version")
  endif()
  string(REPLACE " " "" version "${CMAKE_MATCH_1}")
  string(REGEX REPLACE "\\+.*" "" listed "${version_of_${name}}")  # 2.11.0+cu130
  if(NOT listed STREQUAL version)
    message(FATAL_ERROR "lockstep.spdx.json lists ${name} '${listed}', its header says '${version}'")
  endif()
endforeach()
if(NOT spdx STREQUAL "SPDX-2.3" OR NOT version_of_lockstep)
  message(FATAL_ERROR "lockstep.spdx.json is no SPDX 2.3 document about lockstep")
endif()
