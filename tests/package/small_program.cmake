# Configures and builds tests/package/small against the lockstep below `prefix`, runs it, and expects its line.
# Further arguments are for the configuration.
function(build_and_run_small prefix work)
  execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/small -B ${work}
    -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_CXX_COMPILER=${compiler} ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${work} COMMAND_ERROR_IS_FATAL ANY)
  file(STRINGS ${work}/CMakeCache.txt found REGEX "^lockstep_DIR:")
  string(FIND "${found}" "=${prefix}/" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "the program was built against ${found}, expected one below ${prefix}")
  endif()
  execute_process(COMMAND ${work}/small OUTPUT_VARIABLE output ERROR_VARIABLE output WORKING_DIRECTORY ${work} COMMAND_ERROR_IS_FATAL ANY)
  if(NOT output MATCHES "small program ran")
    message(FATAL_ERROR "the program says: ${output}")
  endif()
endfunction()
