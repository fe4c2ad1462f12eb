# PyPI's ziglang as the C++ compiler: on machines that have none, and for the wheels of others. The environment says
# which: STOKER_ZIG=native, or a target of zig's such as aarch64-linux-gnu.2.17.
set(zig_target $ENV{STOKER_ZIG})
if(zig_target STREQUAL "native")  # not zig's own `native`, which is this very processor
  execute_process(COMMAND uname -m OUTPUT_VARIABLE zig_target OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(CMAKE_HOST_APPLE)
    string(REPLACE arm64 aarch64 zig_target ${zig_target}-macos.11.0)
  else()
    string(APPEND zig_target -linux-gnu.2.17)
  endif()
endif()

# Another system's Python is not at hand: this machine's runs the build, and its headers serve.
if(zig_target MATCHES "macos" AND NOT CMAKE_HOST_APPLE)
  set(CMAKE_SYSTEM_NAME Darwin)
  set(CMAKE_SYSTEM_PROCESSOR arm64)
endif()

# CMake wants a file for each tool. Python_EXECUTABLE is the Python that has ziglang. zig's linker for macOS crashes over
# bundles, so modules are shared libraries, which Python loads as well; and it does not read nanobind's file with the
# names of Python's functions, so whatever is not defined is left to the loader.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES Python_EXECUTABLE)
foreach(tool c++ ar ranlib)
  set(arguments ${tool})
  if(tool STREQUAL "c++")
    string(APPEND arguments " -target ${zig_target}")
  endif()
  file(WRITE ${CMAKE_BINARY_DIR}/zig-${tool} "#!/bin/sh
for one; do
  shift
  case $one in
    -bundle) set -- \"$@\" -shared ;;
    -Wl,@*) set -- \"$@\" -undefined dynamic_lookup ;;
    *) set -- \"$@\" \"$one\" ;;
  esac
done
exec '${Python_EXECUTABLE}' -m ziglang ${arguments} \"$@\"
")
  file(CHMOD ${CMAKE_BINARY_DIR}/zig-${tool} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endforeach()
set(CMAKE_CXX_COMPILER ${CMAKE_BINARY_DIR}/zig-c++)
set(CMAKE_CXX_FLAGS_INIT -DSTOKER_ZIG)  # see processor.cpp
set(CMAKE_AR ${CMAKE_BINARY_DIR}/zig-ar)
set(CMAKE_RANLIB ${CMAKE_BINARY_DIR}/zig-ranlib)
# This machine's `strip` knows no other machine's files, and macOS's `install_name_tool` is not here: the linker strips,
# and nothing is to be renamed.
set(CMAKE_STRIP true)
set(CMAKE_INSTALL_NAME_TOOL true)
set(CMAKE_MODULE_LINKER_FLAGS_INIT -Wl,-s)
