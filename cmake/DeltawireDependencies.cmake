# Third-party packages, all from the distribution; nothing is downloaded or vendored.
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(Boost 1.81 REQUIRED)  # headers only: Asio
find_package(spdlog REQUIRED)
find_package(Catch2 2 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Gloo REQUIRED)  # target: gloo
find_package(OpenSSL 3.0 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(SYSTEMD REQUIRED IMPORTED_TARGET libsystemd)
pkg_check_modules(NCURSES REQUIRED ncursesw)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(MUPARSER REQUIRED IMPORTED_TARGET muparser)
pkg_check_modules(TOMLPLUSPLUS REQUIRED IMPORTED_TARGET tomlplusplus)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(PROMETHEUS REQUIRED IMPORTED_TARGET prometheus-cpp-core)

add_library(dw_asio INTERFACE)
target_link_libraries(dw_asio INTERFACE Boost::headers Threads::Threads)
target_compile_definitions(dw_asio INTERFACE BOOST_ASIO_NO_DEPRECATED)
