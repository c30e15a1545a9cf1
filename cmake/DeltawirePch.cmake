# One precompiled header for everything that uses common/base: to parse these headers takes half of
# a file's compile time. Sources still include what they use; the presets with clang, which switch
# the precompiled header off, fail where one does not.
set(DELTAWIRE_PCH
  <algorithm> <array> <atomic> <chrono> <condition_variable> <cstdint> <cstring> <filesystem>
  <fstream> <functional> <map> <memory> <mutex> <optional> <random> <set> <span> <string>
  <string_view> <thread> <unordered_map> <utility> <vector>
  <absl/status/statusor.h> <spdlog/fmt/fmt.h>)

set(pch_owner "${CMAKE_BINARY_DIR}/pch_owner.cc")
file(CONFIGURE OUTPUT "${pch_owner}"
  CONTENT "// The source that a precompiled header is made for.\n")
add_library(dw_pch STATIC "${pch_owner}")
target_link_libraries(dw_pch PUBLIC dw_flags absl::status absl::statusor spdlog::spdlog)
target_precompile_headers(dw_pch PRIVATE ${DELTAWIRE_PCH})

# A target of other options, -O1 among them, takes no header that was precompiled with -O3: GCC 12 may
# crash on one.
# dw_precompile(TARGET [HEADER...]): gives the target the shared precompiled header, or, if headers
# are named, one of its own that has these beside the shared ones.
function(dw_precompile target)
  if(ARGN)
    target_precompile_headers(${target} PRIVATE ${DELTAWIRE_PCH} ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM dw_pch)
  endif()
endfunction()
