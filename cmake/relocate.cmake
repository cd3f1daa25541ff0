# Makes an installed folder fit for another machine: LibTorch is then at `libtorch`, not where it was at build time. Include it with
#   root           the folder, with lib/, bin/ and so on
#   from           the folder of LibTorch at build time
#   libtorch       where the libraries find it, for example $ORIGIN/../../torch
#   libtorch_cmake, libtorch_pc   the same as the two text files say it
#   libraries      the name of lib/ in it
# The run paths of the build have room for the new ones: they name both places.
cmake_path(GET from PARENT_PATH from_site)
file(GLOB shared ${root}/${libraries}/liblockstep*.so*)
foreach(library IN LISTS shared)
  if(IS_SYMLINK ${library})
    continue()
  endif()
  file(READ_ELF ${library} RUNPATH old)
  set(new)
  foreach(entry IN LISTS old)
    if(entry STREQUAL "$ORIGIN")
      list(APPEND new ${entry})
    elseif(entry MATCHES "^${from}(/.*)")
      list(APPEND new ${libtorch}${CMAKE_MATCH_1})
    elseif(entry MATCHES "^${from_site}(/nvidia/.*)")  # what pip installs beside torch
      list(APPEND new ${libtorch}/..${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES new)
  list(JOIN new ":" new)
  file(RPATH_SET FILE ${library} NEW_RPATH "${new}")
endforeach()

function(replace_in file old new)
  file(READ ${file} text)
  string(FIND "${text}" "${old}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${file} does not name ${old}: expected the folder of LibTorch at build time")
  endif()
  string(REPLACE "${old}" "${new}" text "${text}")
  file(WRITE ${file} "${text}")
endfunction()
replace_in(${root}/${libraries}/cmake/lockstep/lockstep-config.cmake "${from}" "${libtorch_cmake}")
replace_in(${root}/${libraries}/pkgconfig/lockstep.pc "${from}" "${libtorch_pc}")
