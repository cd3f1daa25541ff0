# Steps of several tests in this folder.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# What a command prints on its standard output, without the last line end.
function(output_of result)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${result} "${output}" PARENT_SCOPE)
endfunction()

# Configures and builds the program in small/ against the lockstep below `prefix`, runs it, and expects its line. Further arguments are
# for the configuration.
function(build_and_run_small prefix work)
  run(${CMAKE_COMMAND} -G Ninja -S ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/small -B ${work}
    -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_CXX_COMPILER=${compiler} ${ARGN})
  run(${CMAKE_COMMAND} --build ${work})
  file(STRINGS ${work}/CMakeCache.txt found REGEX "^lockstep_DIR:")
  string(FIND "${found}" "=${prefix}/" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "the program was built against ${found}, expected one below ${prefix}")
  endif()
  execute_process(COMMAND ${work}/small WORKING_DIRECTORY ${work}
    OUTPUT_VARIABLE output ERROR_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  if(NOT output MATCHES "small program ran")
    message(FATAL_ERROR "the program says: ${output}")
  endif()
endfunction()
