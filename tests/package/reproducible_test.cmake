# Compiles two files in two folders and compares the bytes. No compiler cache: it would give the same bytes anyway.
# cmake -D source=... -D work=... -D compiler=... -P reproducible_test.cmake
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)
file(REMOVE_RECURSE ${work})
set(ENV{CCACHE_DISABLE} 1)

set(folders "one" "another place")
set(objects base/crc32c.cpp.o sampling/permutation.cpp.o)
list(TRANSFORM objects PREPEND "src/CMakeFiles/lockstep_core.dir/")
foreach(folder IN LISTS folders)
  file(COPY ${source}/CMakeLists.txt ${source}/cmake ${source}/include ${source}/src DESTINATION "${work}/${folder}")
  run(${CMAKE_COMMAND} -G Ninja -S "${work}/${folder}" -B "${work}/${folder}/build" -D LOCKSTEP_CORE_ONLY=ON
    -D LOCKSTEP_BUILD_TESTS=OFF -D CMAKE_BUILD_TYPE=RelWithDebInfo -D CMAKE_CXX_COMPILER=${compiler})
  run(ninja -C "${work}/${folder}/build" ${objects})
endforeach()

foreach(object IN LISTS objects)
  set(hashes)
  foreach(folder IN LISTS folders)
    file(SHA256 "${work}/${folder}/build/${object}" hash)
    list(APPEND hashes ${hash})
  endforeach()
  list(REMOVE_DUPLICATES hashes)
  list(LENGTH hashes count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "${object} depends on the folder that it was compiled in")
  endif()
  # The control: the object has the path of its source, which would differ if it were not mapped.
  file(STRINGS "${work}/one/build/${object}" paths REGEX "\\./src/[a-z]+/[a-z0-9]+\\.cpp")
  if(NOT paths)
    message(FATAL_ERROR "${object} has no path of its source: the test would find no difference")
  endif()
endforeach()
