# What tests/gpu/run.sh needs: the library, the tool, example 06, the binaries with tests of the label gpu, and the benchmarks.
add_custom_target(gpu_run)
add_dependencies(gpu_run lockstep lockstep_cli 06_char_gpt)
add_dependencies(gpu_run gpu_tests)
if(LOCKSTEP_BUILD_BENCHMARKS)
  get_property(programs DIRECTORY tests/benchmarks PROPERTY BUILDSYSTEM_TARGETS)
  add_dependencies(gpu_run ${programs})
endif()
