# Builds the wheel twice and compares the bytes, installs it by pip into a new Python environment that has torch, and there builds a
# program against it as the documents say.
# cmake -D source=... -D build=... -D libtorch=... -D work=... -D compiler=... -P wheel_test.cmake
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)
file(REMOVE_RECURSE ${work})

foreach(round first second)
  file(MAKE_DIRECTORY ${work}/${round})
  run(${CMAKE_COMMAND} -D build=${build} -D work=${work}/files -D out=${work}/${round} -P ${build}/build_wheel.cmake)
  file(GLOB wheel ${work}/${round}/*.whl)
  cmake_path(GET wheel FILENAME name_${round})
  file(SHA256 ${wheel} hash_${round})
endforeach()
if(NOT name_first STREQUAL name_second OR NOT hash_first STREQUAL hash_second)
  message(FATAL_ERROR "built twice, the bytes of the wheel differ")
endif()

# The tag promises this glibc: nothing needs a newer one.
if(NOT name_first MATCHES "-py3-none-manylinux_2_([0-9]+)_")
  message(FATAL_ERROR "${name_first} has no manylinux tag")
endif()
set(promised ${CMAKE_MATCH_1})
file(GLOB shared ${work}/files/files/lockstep_cpp/lib/*.so.* ${work}/files/files/lockstep_cpp/bin/lockstep
  ${work}/files/files/lockstep_cpp/libexec/lockstep/lockstep-probe)
set(versions "")
foreach(file IN LISTS shared)
  output_of(needed readelf -VW ${file})
  string(REGEX MATCHALL "GLIBC_2\\.[0-9]+" needed "${needed}")
  list(APPEND versions ${needed})
endforeach()
list(REMOVE_DUPLICATES versions)
foreach(version IN LISTS versions)
  string(REPLACE "GLIBC_2." "" version ${version})
  if(version GREATER promised)
    message(FATAL_ERROR "${name_first} needs glibc 2.${version}")
  endif()
endforeach()
if(NOT versions)
  message(FATAL_ERROR "nothing in the wheel needs glibc: the test looks at the wrong files")
endif()

# pip checks RECORD and the tag. torch lies in site-packages as pip would put it.
run(python3 -m venv ${work}/venv)
set(python ${work}/venv/bin/python)
run(${python} -m pip install --disable-pip-version-check --no-deps --no-index --no-compile ${work}/first/${name_first})
output_of(site ${python} -c "import sysconfig as s\nprint(s.get_path('purelib'))")
set(load "import ctypes\nctypes.CDLL('${site}/lockstep_cpp/lib/liblockstep.so.0.1')")
execute_process(COMMAND ${python} -c "${load}" RESULT_VARIABLE result ERROR_VARIABLE output)
if(result EQUAL 0 OR NOT output MATCHES "libtorch_cpu.so|libc10.so")  # the control
  message(FATAL_ERROR "the library loads where there is no torch: ${output}")
endif()
file(CREATE_LINK ${libtorch} ${site}/torch SYMBOLIC)
run(${python} -c "${load}")

run(${python} -c "import hashlib, base64, csv, pathlib
site = pathlib.Path('${site}')
info = next(site.glob('lockstep_cpp-*.dist-info'))
rows = list(csv.reader(open(info / 'RECORD')))
checked = 0
for name, digest, size in rows:
    path = site / name
    if digest:
        data = path.read_bytes()
        assert digest == 'sha256=' + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode(), name
        assert int(size) == len(data), name
        checked += 1
listed = {(site / row[0]).resolve() for row in rows}
there = {path.resolve() for path in (site / 'lockstep_cpp').rglob('*') if path.is_file() and '__pycache__' not in path.parts}
assert there <= listed, there - listed
assert checked > 60, checked
metadata = (info / 'METADATA').read_text()
assert 'Requires-Dist: torch>=2.11,<2.12' in metadata and 'Name: lockstep-cpp' in metadata, metadata
assert list(info.glob('licenses/*')) and list(info.glob('sboms/*.json')), info
")

# As the documents say. Neither a variable nor the LibTorch that cmake/setup.sh fetched helps.
unset(ENV{LOCKSTEP_LIBTORCH})
unset(ENV{LD_LIBRARY_PATH})
set(ENV{XDG_CACHE_HOME} ${work}/no_cache)
output_of(prefix ${python} -m lockstep_cpp --cmake)
output_of(version ${python} -m lockstep_cpp --version)
if(NOT name_first MATCHES "^lockstep_cpp-${version}-py3")
  message(FATAL_ERROR "python -m lockstep_cpp --version says ${version}, the wheel is ${name_first}")
endif()
run(python3 ${CMAKE_CURRENT_LIST_DIR}/manual_links.py ${prefix}/share/doc/lockstep)
build_and_run_small(${prefix} ${work}/program)
run(${work}/venv/bin/lockstep run --nproc-per-node 2 -- ${CMAKE_COMMAND} -E true)
run(${work}/venv/bin/lockstep test --nprocs 1 --run-dir ${work})
execute_process(COMMAND ${work}/venv/bin/lockstep-convert --help OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT output MATCHES "lockstep-convert")
  message(FATAL_ERROR "lockstep-convert does not start: ${output}")
endif()

# For programs without CMake.
find_program(pkg_config NAMES pkg-config pkgconf)
if(pkg_config)
  set(ENV{PKG_CONFIG_PATH} ${prefix}/lib/pkgconfig)
  output_of(folder ${pkg_config} --variable=libtorch lockstep)
  if(NOT EXISTS ${folder}/lib/libtorch_cpu.so)
    message(FATAL_ERROR "lockstep.pc of the wheel looks for LibTorch in ${folder}")
  endif()
endif()
