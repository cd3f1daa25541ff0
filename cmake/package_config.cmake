# Read by cpack before each package. Archives carry the time of the sources, so that two runs give the same bytes.
if(NOT DEFINED ENV{SOURCE_DATE_EPOCH})
  set(ENV{SOURCE_DATE_EPOCH} ${CPACK_LOCKSTEP_SOURCE_DATE})
endif()
