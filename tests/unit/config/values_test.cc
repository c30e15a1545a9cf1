#include "common/config/values.h"

namespace deltawire {
namespace {

TEST_CASE("sizes are whole numbers with a unit") {
  struct {
    const char* text;
    uint64_t bytes;
  } const good[] = {{"0", 0},
                    {"1048576", 1048576},
                    {"17B", 17},
                    {"3KiB", 3072},
                    {"512MiB", 536870912},
                    {"512 MiB", 536870912},
                    {"2GiB", 2147483648},
                    {"1TiB", 1099511627776},
                    {"5kB", 5000},
                    {"500MB", 500000000},
                    {"2GB", 2000000000},
                    {"1TB", 1000000000000},
                    {"16777215TiB", 16777215ull << 40}};
  for (const auto& c : good) {
    CAPTURE(c.text);
    const auto size = ParseSize(c.text);
    REQUIRE(size.ok());
    CHECK(*size == c.bytes);
    CHECK(*ParseSize(SizeText(c.bytes)) == c.bytes);
  }
  CHECK(SizeText(uint64_t{2} << 30) == "2GiB");
  CHECK(SizeText(1500) == "1500");
  for (const char* text : {"", "GiB", "-1", "+1", "1.5GiB", "2gib", "2G", "2GiB ", "2  GiB", "0x10",
                           "18446744073709551616", "16777216TiB", "2GiBx"}) {
    CAPTURE(text);
    CHECK(ParseSize(text).status().code() == StatusCode::kInvalidArgument);
  }
}

TEST_CASE("numbers keep their bounds") {
  CHECK(*ParseNumber("1", 1, 64) == 1);
  CHECK(*ParseNumber("64", 1, 64) == 64);
  for (const char* text : {"0", "65", "", "x", "4x", "-1", " 4", "1e1"}) {
    CAPTURE(text);
    CHECK_FALSE(ParseNumber(text, 1, 64).ok());
  }
}

TEST_CASE("model names are safe as directory names") {
  for (const std::string& name : {std::string("a"), std::string("Qwen3-30B_A3B.v2"),
                                  std::string(128, 'x'), std::string("-")}) {
    CAPTURE(name);
    CHECK(CheckModelName(name).ok());
  }
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string(".a"), std::string("a/b"),
        std::string("a b"), std::string("a\0b", 3), std::string("ü"), std::string(129, 'x')}) {
    CAPTURE(name);
    CHECK(CheckModelName(name).code() == StatusCode::kInvalidArgument);
  }
}

TEST_CASE("hosts are names or addresses") {
  for (const char* host : {"a", "10.0.0.1", "node-1.local", "::1", "2001:db8::1"}) {
    CHECK(CheckHost(host).ok());
  }
  for (const std::string& host : {std::string(), std::string("a b"), std::string("a:1"),
                                  std::string("::g"), std::string(254, 'a')}) {
    CAPTURE(host);
    CHECK_FALSE(CheckHost(host).ok());
  }
}

}  // namespace
}  // namespace deltawire
