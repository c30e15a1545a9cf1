# Build switches. Everything a preset may set is declared here and nowhere else.
option(DELTAWIRE_TESTS "Build the tests" ON)
option(DELTAWIRE_BENCH "Build the benchmarks" ON)
option(DELTAWIRE_PACKAGES "Manual pages, and Debian packages by cpack" OFF)
option(DELTAWIRE_FUZZ "Build libFuzzer targets (clang only)" OFF)
option(DELTAWIRE_WERROR "Treat warnings as errors" OFF)
option(DELTAWIRE_HEADER_CHECK "Compile every header alone in the default build" OFF)
option(DELTAWIRE_UNITY "Compile each target's sources joined, a few at a time" ON)
option(DELTAWIRE_MAP_PATHS "Keep the path of this tree out of what is built" OFF)
set(DELTAWIRE_SANITIZE "" CACHE STRING "Comma-separated -fsanitize= list, e.g. address,undefined")
set(DELTAWIRE_PYTHON_SITE "" CACHE STRING
  "Where the Python package goes, below the prefix; its libraries lie where the loader looks then")
set(DELTAWIRE_CUDA "AUTO" CACHE STRING "CUDA kernels: AUTO (when nvcc is found), ON or OFF")
option(DELTAWIRE_CUDA_FOR_ALL "Kernels for all devices in use, and no NCCL: for other machines" OFF)

# A file has 128 lines on average and parses a hundred thousand of headers, so joined sources compile
# in a fraction of the time. The price: names in anonymous namespaces are unique within a target, and
# a changed file compiles its neighbours too. The preset `dev` compiles each file alone.
set(CMAKE_UNITY_BUILD ${DELTAWIRE_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Without this ccache could not follow a precompiled header.
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()

include(DeltawireCuda)

find_package(Threads REQUIRED)

# Otherwise the same commit, built in two places, would differ: in __FILE__, in debug information, and
# by that in the build ID, which stays when the information is stripped. GCC notes its own options
# there, and ccache hands them over in another order.
if(DELTAWIRE_MAP_PATHS)
  set(mapped "-ffile-prefix-map=${PROJECT_SOURCE_DIR}=/usr/src/deltawire")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${mapped}>")
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${mapped}>")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-gno-record-gcc-switches>)
  endif()
endif()

# The flags of all our targets, which get them from dw_library() and dw_executable().
add_library(dw_flags INTERFACE)
target_compile_options(dw_flags INTERFACE -Wall -Wextra -Wshadow -Wno-missing-field-initializers)
if(DELTAWIRE_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # A source that is joined to others is no main file, so GCC takes its own types for a header's.
  target_compile_options(dw_flags INTERFACE -Wno-subobject-linkage)
endif()
if(DELTAWIRE_WERROR)
  target_compile_options(dw_flags INTERFACE -Werror)
endif()
# Targets share a precompiled header only if these options are the same. Protocol Buffers' target
# asks for -pthread, so all have it. All code is position-independent, because parts of all rooms go
# into the trainer's shared library.
target_compile_options(dw_flags INTERFACE -pthread -fPIC -fno-semantic-interposition)
target_include_directories(dw_flags INTERFACE "${PROJECT_SOURCE_DIR}")
target_link_libraries(dw_flags INTERFACE Threads::Threads)
if(DELTAWIRE_SANITIZE)
  # Applied everywhere, so that no object is left uninstrumented.
  add_compile_options(-fsanitize=${DELTAWIRE_SANITIZE} -fno-omit-frame-pointer)
  # GCC 12 sees uninitialised members in the standard library's own code under its sanitizers.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  add_link_options(-fsanitize=${DELTAWIRE_SANITIZE})
  if(DELTAWIRE_SANITIZE MATCHES "thread")
    # Otherwise gRPC, which is not instrumented, would call our instrumented copies of std::string's
    # functions, and every string that it hands to another thread would look like a race.
    set(executable "$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>")
    set(map "${CMAKE_CURRENT_LIST_DIR}/no_exports.map")
    add_link_options("$<${executable}:-Wl,--version-script=${map}>")
  endif()
  if(DELTAWIRE_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
    # These two checks would take a quarter of a sanitized build's time. Nothing here casts down a
    # hierarchy, which `vptr` checks, and the address sanitizer sees what `object-size` would.
    add_compile_options(-fno-sanitize=vptr,object-size)
  endif()
endif()

# dw_library(NAME SOURCES ... [DEPS ...] [PCH none|HEADER...]). By default the library uses the
# shared precompiled header (DeltawirePch.cmake); with `PCH none` it uses none, with headers one of
# its own that has these beside the shared ones.
function(dw_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PCH" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC dw_flags ${ARG_DEPS})
  if(NOT ARG_PCH STREQUAL "none")
    dw_precompile(${name} ${ARG_PCH})
  endif()
endfunction()

# dw_executable(NAME SOURCES ... [DEPS ...])
function(dw_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE dw_flags ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
endfunction()
