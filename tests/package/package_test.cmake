# Installs a build, moves the result, builds examples/consumer against it with nothing but CMAKE_PREFIX_PATH, and runs that.
# cmake -D quickstart=... -D build=... -D consumer=... -D work=... -D compiler=... -P package_test.cmake
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# The README installs what the quickstart has built: it must build everything that is installed.
file(STRINGS ${quickstart} command REGEX "^cmake --build")
string(REGEX REPLACE "^.*--target " "" targets "${command}")
separate_arguments(targets)
execute_process(COMMAND ninja -C ${build} -t commands ${targets} OUTPUT_VARIABLE built COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE scripts ${build}/src/cmake_install.cmake)  # not those that other tests write below the build folder
list(APPEND scripts ${build}/cmake_install.cmake)
set(found 0)
foreach(script ${scripts})
  file(READ ${script} text)
  string(REGEX MATCHALL "\"${build}/(bin|lib)/[^\"]+\"" installed "${text}")
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

run(${CMAKE_COMMAND} -G Ninja -S ${consumer} -B ${work}/build -D CMAKE_PREFIX_PATH=${work}/moved -D CMAKE_CXX_COMPILER=${compiler})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/consumer)

# The launcher is installed, works from anywhere and runs any program, also one that knows nothing of it.
run(${work}/moved/bin/lockstep run --nproc-per-node 2 -- ${CMAKE_COMMAND} -E true)

# A package of another minor version must not be taken.
file(WRITE ${work}/newer/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(newer LANGUAGES CXX)
find_package(lockstep 99.0)
if(lockstep_FOUND)
  message(FATAL_ERROR \"lockstep 99.0 was found\")
endif()
")
run(${CMAKE_COMMAND} -S ${work}/newer -B ${work}/newer/build -D CMAKE_PREFIX_PATH=${work}/moved -D CMAKE_CXX_COMPILER=${compiler})
