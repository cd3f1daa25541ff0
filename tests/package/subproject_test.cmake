# Configures a project that has lockstep as a part of itself, compiles one file of that project, and looks at what it would build.
# cmake -D source=... -D libtorch=... -D work=... -D compiler=... -P subproject_test.cmake
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)
file(REMOVE_RECURSE ${work})

function(configure folder)
  execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${source}/tests/package/subproject -B ${work}/${folder}
    -D LOCKSTEP=${source} -D LOCKSTEP_LIBTORCH=${libtorch} -D CMAKE_CXX_COMPILER=${compiler} -D CMAKE_BUILD_TYPE=Release ${ARGN}
    OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  set(output "${output}" PARENT_SCOPE)
  set(result "${result}" PARENT_SCOPE)
endfunction()

# What building a target would run; "all" for everything.
function(commands_of folder target result)
  output_of(commands ninja -C ${work}/${folder} -t commands ${target})
  set(${result} "${commands}" PARENT_SCOPE)
endfunction()

foreach(folder subfolder fetched)
  set(fetch OFF)
  if(folder STREQUAL fetched)
    set(fetch ON)
  endif()
  configure(${folder} -D FETCH=${fetch})
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${folder}: ${output}")
  endif()

  # Only the library is built. The control: the tool could be, if it is asked for.
  commands_of(${folder} all steps)
  commands_of(${folder} lockstep_cli tool_steps)
  if(NOT steps MATCHES " lockstep/lib/liblockstep\\.so" OR NOT tool_steps MATCHES "-o lockstep/bin/lockstep ")
    message(FATAL_ERROR "${folder}: the library is not built, or lockstep_cli does not build the tool")
  endif()
  foreach(other "-o lockstep/bin/lockstep " ${source}/tests/unit ${source}/tests/structure ${source}/examples)
    string(FIND "${steps}" "${other}" at)
    if(NOT at EQUAL -1)
      message(FATAL_ERROR "${folder}: builds more than the library: ${other}")
    endif()
  endforeach()
  file(GLOB_RECURSE scripts ${work}/${folder}/*/cmake_install.cmake)
  foreach(script IN LISTS scripts)
    file(READ ${script} text)
    if(text MATCHES "file\\(INSTALL")
      message(FATAL_ERROR "${folder}: lockstep would be installed with the project: ${script}")
    endif()
  endforeach()

  # Warnings and hardening stay with the library. The control: it has them.
  commands_of(${folder} CMakeFiles/consumer.dir/main.cpp.o consumer)
  commands_of(${folder} lockstep/src/CMakeFiles/lockstep_core.dir/sampling/permutation.cpp.o library)
  foreach(flag -Wconversion -Wold-style-cast -fstack-protector-strong -ffile-prefix-map -O2)
    if(consumer MATCHES " ${flag}" OR NOT library MATCHES " ${flag}")
      message(FATAL_ERROR "${folder}: ${flag} belongs to the library alone: ${consumer}")
    endif()
  endforeach()
  if(NOT consumer MATCHES " -DUSE_C10D_GLOO" OR NOT consumer MATCHES " -std=(c|gnu)\\+\\+20")
    message(FATAL_ERROR "${folder}: the project's file lacks what lockstep::lockstep brings: ${consumer}")
  endif()
endforeach()
run(ninja -C ${work}/subfolder CMakeFiles/consumer.dir/main.cpp.o)

# What is missing is named. In the same folder, which knows the compiler already.
foreach(package fmt nlohmann_json tomlplusplus)
  configure(subfolder -U CMAKE_DISABLE_FIND_PACKAGE_* -D CMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(result EQUAL 0 OR NOT output MATCHES "The package ${package} was not found. Install it")
    message(FATAL_ERROR "without ${package}: ${output}")
  endif()
endforeach()
