#include "cli/arguments.h"

#include <catch2/catch.hpp>

namespace deltawire::cli::arguments_test {
namespace {

// What the tool says of these arguments; "" when it takes them.
std::string Said(CLI::App& app, std::vector<std::string> arguments) {
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& e) {
    return e.what();
  }
  return "";
}

TEST_CASE("a whole number is digits alone, and a refusal says from where on") {
  CLI::App app;
  uint64_t version = 0;
  AddWhole(app, "--version", version, "", 1);
  const auto said = [&](const std::string& text) { return Said(app, {"--version=" + text}); };
  CHECK(said("0") == "--version: 0 is not a whole number of at least 1");
  CHECK(said("-1") == "--version: -1 is not a whole number of at least 1");
  CHECK(said("1.5") == "--version: 1.5 is not a whole number of at least 1");
  CHECK(said("1e3") == "--version: 1e3 is not a whole number of at least 1");
  CHECK(said("seven") == "--version: seven is not a whole number of at least 1");
  CHECK(said("7 ") == "--version: 7  is not a whole number of at least 1");
  CHECK(said("18446744073709551615").empty());
  CHECK(version == UINT64_MAX);
  CHECK(said("010").empty());
  CHECK(version == 10);
}

TEST_CASE("hexadecimal digits are taken in either case, and nothing else is") {
  CLI::App app;
  std::string root;
  AddHex(app, "--root", root, "", 4);
  const auto said = [&](const std::string& text) { return Said(app, {"--root=" + text}); };
  CHECK(said("xyz") == "--root: \"xyz\" is not 1 to 4 hexadecimal digits");
  CHECK_FALSE(said("0x1").empty());
  CHECK_FALSE(said("12345").empty());
  CHECK(said("9aF0").empty());
  CHECK(root == "9af0");
}

TEST_CASE("a whole number that its target cannot hold is refused, never wrapped or cut") {
  CLI::App app;
  uint64_t seed = 0;
  uint32_t count = 0;
  uint32_t few = 0;
  AddWhole(app, "--seed", seed, "");
  AddWhole(app, "--count", count, "", 1);
  AddWhole(app, "--few", few, "", 1, 64);
  CHECK(Said(app, {"--seed=-1"}) == "--seed: -1 is not a whole number of at least 0");
  CHECK(Said(app, {"--seed=18446744073709551616"}) ==
        "--seed: 18446744073709551616 is not a whole number from 0 to 18446744073709551615");
  CHECK(Said(app, {"--count=4294967296"}) ==
        "--count: 4294967296 is not a whole number from 1 to 4294967295");
  CHECK(Said(app, {"--few=0"}) == "--few: 0 is not a whole number from 1 to 64");
  CHECK(Said(app, {"--few=65"}) == "--few: 65 is not a whole number from 1 to 64");
  CHECK(Said(app, {"--few=64"}).empty());
  CHECK(few == 64);
}

TEST_CASE("seconds are finite numbers within their bounds") {
  CLI::App app;
  double seconds = 2;
  AddSeconds(app, "--interval", seconds, "", 0.05, 1e6);
  const auto said = [&](const std::string& text) { return Said(app, {"--interval=" + text}); };
  CHECK(said("0") == "--interval: 0 is not a number of seconds from 0.05 to 1000000");
  for (const char* text : {"-1", "1e7", "nan", "inf", "5s", ""}) {
    CAPTURE(text);
    CHECK_FALSE(said(text).empty());
  }
  CHECK(said("0.5").empty());
  CHECK(seconds == 0.5);
}

TEST_CASE("a size has a unit or none, and is at least one byte") {
  CLI::App app;
  uint64_t thousands = 0;
  uint64_t twos = 0;
  TakeSize(app.add_option("--file", thousands, ""), true);
  TakeSize(app.add_option("--bucket", twos, ""), false);
  CHECK(Said(app, {"--file=0"}) == "--file: 0 is less than one byte");
  CHECK(Said(app, {"--file=0GB"}) == "--file: 0GB is less than one byte");
  CHECK(Said(app, {"--file=-5"}) ==
        "--file: \"-5\" is no size; write a number with or without a unit: 512MiB, 1.5GiB, 2GB");
  CHECK_FALSE(Said(app, {"--file=2 apples"}).empty());
  CHECK(Said(app, {"--file=1.5KB", "--bucket=1.5KB"}).empty());
  CHECK(thousands == 1500);
  CHECK(twos == 1536);
  CHECK(Said(app, {"--file=2KB", "--bucket=2KB"}).empty());
  CHECK(thousands == 2000);
  CHECK(twos == 2048);
  CHECK(Said(app, {"--file=123"}).empty());
  CHECK(thousands == 123);
}

}  // namespace
}  // namespace deltawire::cli::arguments_test
