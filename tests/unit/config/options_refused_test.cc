// What a daemon refuses of its command line and its file, and that the message names the option,
// the file and the line.
#include <catch2/catch.hpp>
#include <cstring>

#include "common/config/options.h"
#include "tests/unit/config/options_rig.h"

namespace deltawire::options_refused_test {
namespace {

TEST_CASE("errors on the command line name the option") {
  CheckError(Sender({"--wrong"}), {"--wrong", "--help"});
  CheckError(Sender({"stray"}), {"stray"});
  CheckError(Sender({"--threads"}), {"--threads"});
  CheckError(Sender({"--threads=1", "--threads=2"}), {"--threads"});
  CheckError(Sender({"--threads=1025"}), {"--threads: ", "1024"});
  CheckError(Sender({"--control-listen=7700"}), {"--control-listen: ", "\"7700\"", "HOST:PORT"});
  CheckError(Sender({"--bulk-listen=a:b"}), {"--bulk-listen: "});
  CheckError(Sender({"--metrics-listen=9090"}), {"--metrics-listen: "});
  CheckError(Sender({"--advertise-host=a b"}), {"--advertise-host: "});
  CheckError(Sender({"--gpu=yes"}), {"--gpu", "yes", "host-staged"});
  CheckError(Sender({"--codec=zip"}), {"--codec", "zip", "tight"});
  CheckError(Sender({"--delta-log=2X"}), {"--delta-log: ", "\"2X\" is no size", "1.5GiB"});
  CheckError(Sender({"--offload-timeout-ms=-1"}), {"--offload-timeout-ms: "});
  CheckError(Sender({"--stream-timeout-ms=999"}), {"--stream-timeout-ms: "});
  CheckError(Sender({"--rate-limit=2X"}), {"--rate-limit: ", "\"2X\" is no size"});
  CheckError(Sender({"--rate-limit=host:2MB"}), {"--rate-limit: ", "is not site or receiver"});
  CheckError(Sender({"--rate-limit=1", "--rate-limit=2"}), {"--rate-limit: ", "set twice"});
  CheckError(Sender({"--rate-limit=site:1", "--rate-limit=site:2"}), {"set twice"});
  CheckError(Sender({"--log-level=loud"}), {"--log-level: ", "loud", "debug"});
  CheckError(Sender({"--data-dir="}), {"--data-dir"});
  for (const char* streams : {"--streams=65", "--streams=x"}) {
    CheckError(Receiver({"--model=m", streams}), {"--streams: ", "0 to 64"});
  }
  for (const char* name : {"--congestion-control=Bbr", "--congestion-control=a-b"}) {
    CheckError(Sender({name}), {"--congestion-control: ", "auto, system"});
  }
  CheckError(Receiver({}), {"--model is required"});
  for (const char* model : {"--model=.m", "--model=a/b", "--model= ", "--model==/d"}) {
    CheckError(Receiver({model}), {"--model: ", "is not a model name"});
  }
  CheckError(Receiver({"--model=m="}), {"--model: ", "directory"});
  CheckError(Receiver({"--model=m start-from="}), {"--model: ", "after start-from="});
  CheckError(Receiver({"--model=m start=/d"}), {"--model: ", "is not a model name"});
  CheckError(Receiver({"--model=m", "--model=m=/d"}), {"--model: ", "named twice"});
  CheckError(Receiver({"--model=m=/d/e", "--model=n=/d/./e/"}), {"--model: ", "one directory"});
  CheckError(Receiver({"--model=m", "--sender=host:0"}), {"--sender: ", "port 0"});
  CheckError(Receiver({"--model=m", "--sender=host"}), {"--sender: "});
  CheckError(Receiver({"--model=m", "--receiver-id=a b"}), {"--receiver-id: "});
}

TEST_CASE("listening beyond loopback needs keys or insecure-plaintext, and the error says why") {
  for (const std::string option : {"control-listen", "bulk-listen", "metrics-listen"}) {
    const std::string arg = "--" + option + "=0.0.0.0:7700";
    const bool metrics = option == "metrics-listen";  // plaintext whatever the keys are
    std::vector<std::string> says = {"0.0.0.0:7700"};
    if (metrics) says.push_back("--insecure-metrics");
    if (!metrics) says.insert(says.end(), {"insecure-plaintext = true", "encrypts", "certs"});
    CheckError(Sender({arg.c_str()}), says);
    CheckError(Sender({arg.c_str(), "--credentials=c"}), says);
    CheckError(Sender({arg.c_str(), "--principals=p"}), says);
    CHECK(Sender({arg.c_str(), "--credentials=c", "--principals=p"}).run != metrics);
    CheckError(Sender({arg.c_str()}), {"--" + option + ": "});
    CHECK(Sender({arg.c_str(), "--insecure-plaintext"}).run);
    CHECK(Sender({arg.c_str(), "--insecure-metrics"}).run == metrics);
    if (option == "bulk-listen") continue;
    CheckError(Receiver({"--model=m", arg.c_str()}), says);
    CHECK(Receiver({"--model=m", arg.c_str(), "--insecure-plaintext"}).run);
  }
  const ConfigFile file("\ncontrol-listen = \"[::]:1\"\n");
  CheckError(Sender({"--config", file.path()}),
             {std::string(file.path()) + ":2: control-listen: ", "[::]:1"});
}

TEST_CASE("a home that no shell has replaced is refused, wherever a path may stand") {
  const std::string says = "write the whole path";
  CheckError(Sender({"--data-dir=~/d"}), {"--data-dir: ~/d: ", says});
  CheckError(Receiver({"--model=m=~/d"}), {"--model: m=~/d: ", says});
  CheckError(Receiver({"--model=m start-from=~"}), {"--model: ", says});
  CheckError(Receiver({"--model=m", "--data-dir", "~"}), {"--data-dir: ", says});
  CHECK(Receiver({"--model=m=/d/~/e~", "--data-dir=~x"}).run);  // names like others
}

TEST_CASE("a Unix socket's path has a limit") {
  const std::string fits = "--data-dir=/" + std::string(106 - std::strlen("/trainer.sock"), 'a');
  CHECK(Sender({fits.c_str()}).run);
  const std::string longer = fits + "a";
  CheckError(Sender({longer.c_str()}), {"--data-dir: ", "trainer.sock has 108 bytes", "107"});
}

TEST_CASE("errors in the file name file, line and key") {
  struct {
    const char* content;
    std::vector<std::string> parts;
  } const cases[] = {
      {"\n\nstreamz = 4\n", {":3: streamz: ", "no such option", "did you mean \"streams\"?"}},
      {"config = \"other.toml\"\n", {":1: config: ", "no such option"}},
      {"help = true\n", {":1: help: ", "no such option"}},
      {"version = true\n", {":1: version: ", "no such option"}},
      {"no-follow = true\n", {":1: no-follow: ", "no such option"}},
      {"h = true\n", {":1: h: ", "no such option"}},
      {"streams = 65\n", {":1: streams: ", "0 to 64"}},
      {"streams = -1\n", {":1: streams = -1 is not"}},
      {"streams = true\n", {":1: streams: ", "not true"}},
      {"streams = []\n", {":1: streams: "}},
      {"streams = [\"4\", \"5\"]\n", {":1: streams: "}},
      {"data-dir = true\n", {":1: data-dir: ", "not true"}},
      {"data-dir = ''\n", {":1: data-dir: ", "empty"}},
      {"log-level = \"loud\"\n", {":1: log-level: ", "loud", "debug"}},
      {"staging = \"2X\"\n", {":1: staging: ", "unit", "MiB"}},
      {"follow = 1\n", {":1: follow: ", "true or false", "not 1"}},
      {"follow = \"true\"\n", {":1: follow: ", "true or false"}},
      {"\nmodel = [\"ok\",\n \".m\"]\n", {":2: model: ", "\".m\""}},
      {"model = true\n", {":1: model: ", "not true"}},
      {"model = []\n", {":1: model: ", "1 required"}},
      {"sender = \"host\"\n", {":1: sender: "}},
      {"streams = 1\nfollow = true\nstreams = 1\n", {":3: streams: ", "is set twice"}},
  };
  for (const auto& c : cases) {
    CAPTURE(c.content);
    const ConfigFile file(c.content);
    const auto parsed = Receiver({"--config", file.path()});
    CheckError(parsed, c.parts);
    CHECK(parsed.text.find(file.path()) == 0);
  }
}

// CLI11's own reader accepts most of these, as a flag or as part of a value.
TEST_CASE("a malformed line never passes") {
  for (const std::string line : {"follow",
                                 "data-dir",
                                 "data-dir /d",
                                 "ab",
                                 "x",
                                 "data-dir =",
                                 "= 1",
                                 "=",
                                 "data-dir = /d",
                                 "data-dir = \"/d",
                                 "data-dir = '/d",
                                 "data-dir = /d\"",
                                 "data-dir = \"/d'",
                                 "data-dir = \"/d\"x",
                                 "data-dir = \"/d\" x",
                                 "data-dir = \"a\"b\"",
                                 "data-dir = \"/#d\"",
                                 "data-dir = \"\\\\d\"",
                                 "data-dir = \"\"\"d\"\"\"",
                                 "model = [\"a\"",
                                 "model = [\"a]",
                                 "model = \"a\"]",
                                 "model = [\"a\" \"b\"]",
                                 "model = [a]",
                                 "model = [\"a\", \"b]",
                                 "model = [,]",
                                 "model = [[\"a\"]]",
                                 "model = \"a\", \"b\"",
                                 "streams = 010",
                                 "streams = 0x10",
                                 "streams = 1_0",
                                 "streams = 1.5",
                                 "streams = 1 2",
                                 "follow = maybe",
                                 "[]",
                                 "[network]",
                                 "[[network]]",
                                 "[default]",
                                 "a.b = 1",
                                 "\"streams\" = 1",
                                 "; comment",
                                 "\xef\xbb\xbfstreams = 1"}) {
    CAPTURE(line);
    const ConfigFile last("streams = 4\n\n" + line);
    CheckError(Receiver({"--config", last.path()}),
               {std::string(last.path()) + ":3: ", line.substr(0, line.find('#'))});
    const ConfigFile first(line + "\nstreams = 4\n");
    CheckError(Receiver({"--config", first.path()}), {std::string(first.path()) + ":1: "});
  }
  const ConfigFile oversized("data-dir = \"" + std::string(1 << 20, 'a') + "\"");
  CheckError(Sender({"--config", oversized.path()}), {std::string(oversized.path()) + ":1: "});
  const ConfigFile endless("model = [" + std::string(1 << 20, '\n') + std::string(1 << 20, 'a'));
  CheckError(Sender({"--config", endless.path()}), {std::string(endless.path()) + ":1: "});
}

TEST_CASE("an error names the source whose value is in force") {
  const ConfigFile bad("streams = 65\nmodel = \"m\"\n");
  CHECK(Receiver({"--config", bad.path(), "--streams=2"}).options.streams == 2);
  const ConfigFile good("streams = 4\nmodel = \"m\"\n");
  const auto parsed = Receiver({"--config", good.path(), "--streams=65"});
  CheckError(parsed, {"--streams: "});
  CHECK(parsed.text.find(good.path()) == std::string::npos);
}

TEST_CASE("model names are safe as directory names") {
  for (const std::string& name : {std::string("a"), std::string("Qwen3-30B_A3B.v2"),
                                  std::string(128, 'x'), std::string("-")}) {
    const auto parsed = Receiver({("--model=" + name).c_str()});
    CAPTURE(name, parsed.text);
    CHECK(parsed.options.models == std::vector<ReceiverModelOptions>{{name, ""}});
  }
  for (const std::string name : {"", ".", "..", ".a", "a/b", "a b", "\xc3\xbc", "a\nb"}) {
    CheckError(Receiver({"--model", name.c_str()}), {"--model: ", "is not a model name"});
  }
  const std::string longer(129, 'x');
  CheckError(Receiver({"--model", longer.c_str()}), {"--model: ", "is not a model name"});
}

TEST_CASE("a file that cannot be read is named") {
  const TempDir temp;
  const std::string absent = temp.path() / "absent.toml";
  CheckError(Sender({"--config", absent.c_str()}), {absent, "does not exist"});
  CheckError(Sender({"--config", temp.path().c_str()}), {temp.path().native(), "directory"});
  CheckError(Sender({"--config", ""}), {"--config", "does not exist"});
  CheckError(Sender({"--config"}), {"--config"});
  const ConfigFile file("");
  CheckError(Sender({"--config", file.path(), "--config", file.path()}), {"--config"});
}

}  // namespace
}  // namespace deltawire::options_refused_test
