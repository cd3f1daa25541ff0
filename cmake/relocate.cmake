# Makes an installed folder fit for another machine: LibTorch is then at `libtorch`, not where it was at build time. Include it with
#   root           the folder, with lib/, bin/ and so on
#   from           the folder of LibTorch at build time
#   libtorch       where the libraries find it, for example $ORIGIN/../../torch
#   libtorch_probe the same for lockstep-probe
#   libtorch_cmake, libtorch_pc   the same as the two text files say it
#   libraries, libexec   the names of lib/ and libexec/ in it
# The run paths of the build have room for the new ones: they name both places.
cmake_path(GET from PARENT_PATH nvidia)
cmake_path(APPEND nvidia nvidia)  # what pip installs beside torch
file(GLOB shared ${root}/${libraries}/liblockstep*.so*)
set(probe ${root}/${libexec}/lockstep/lockstep-probe)
foreach(library IN LISTS shared ITEMS ${probe})
  if(IS_SYMLINK ${library})
    continue()
  endif()
  set(new_libtorch ${libtorch})
  if(library STREQUAL probe)
    set(new_libtorch ${libtorch_probe})
  endif()
  file(READ_ELF ${library} RUNPATH old)
  set(new)
  foreach(entry IN LISTS old)
    if(entry MATCHES "^[$]ORIGIN")
      list(APPEND new ${entry})
      continue()
    endif()
    cmake_path(IS_PREFIX from "${entry}" of_libtorch)
    cmake_path(IS_PREFIX nvidia "${entry}" of_nvidia)
    if(of_libtorch OR of_nvidia)
      string(REPLACE "${from}/" "${new_libtorch}/" entry "${entry}")
      string(REPLACE "${nvidia}/" "${new_libtorch}/../nvidia/" entry "${entry}")
      list(APPEND new ${entry})
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
