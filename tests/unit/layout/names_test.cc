#include "common/layout/names.h"

#include <catch2/catch.hpp>

namespace deltawire::names_test {
namespace {

TEST_CASE("UTF-8 is accepted up to its limits and no further") {
  for (const char* good : {"", "a", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    CAPTURE(good);
    CHECK(IsUtf8(good));
  }
  for (const char* bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2\x41", "\xe0\x9f\xbf", "\xed\xa0\x80",
        "\xe2\x82", "\xe2\x82\x41", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
        "\xff", "ok\xfe"}) {
    CAPTURE(Quoted(bad));
    CHECK_FALSE(IsUtf8(bad));
  }
}

TEST_CASE("a text that is too long is cut between characters") {
  CHECK(FitUtf8("a\xc3\xa9", 3) == "a\xc3\xa9");
  CHECK(FitUtf8("a\xc3\xa9", 2) == "a");
  CHECK(FitUtf8("a\xc3\xa9", 0).empty());
  CHECK(FitUtf8("\xe2\x82\xac\xf0\x90\x80\x80", 6) == "\xe2\x82\xac");
  CHECK(FitUtf8("a\xff\xc3", 3) == "a??");
}

TEST_CASE("quoting keeps messages printable, UTF-8 and bounded") {
  CHECK(Quoted("model.w") == "\"model.w\"");
  CHECK(Quoted("a\"b\\c") == "\"a\\\"b\\\\c\"");
  CHECK(Quoted("\n\x7f\xff") == "\"\\x0a\\x7f\\xff\"");
  CHECK(Quoted("\xc3\xa4") == "\"\xc3\xa4\"");
  CHECK(Quoted(std::string(1'000'000, 'x')).size() < 300);
  CHECK_THAT(Quoted(std::string(1'000, 'x')), Catch::EndsWith("more bytes)"));
}

TEST_CASE("JSON strings escape what JSON demands and repair what is not UTF-8") {
  using namespace std::string_view_literals;
  std::string out;
  AppendJsonString("q\" b\\ n\n z\0 \x7f \xe2\x82\xac \xff"sv, out);
  CHECK(out == "\"q\\\" b\\\\ n\\u000a z\\u0000 \x7f \xe2\x82\xac \xef\xbf\xbd\"");
}

}  // namespace
}  // namespace deltawire::names_test
