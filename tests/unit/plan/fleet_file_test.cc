// How a fleet's file is read, and what is said of mistakes in it.
#include <catch2/catch.hpp>
#include <filesystem>

#include "common/plan/fleet.h"
#include "common/plan/predict.h"
#include "common/plan/quantity.h"

namespace deltawire::plan::fleet_file_test {
namespace {

constexpr const char* kSmall = R"([model]
bytes = "2 GB"
[[site]]
name = "rollout"
)";

std::string Refusal(const std::string& text) {
  const auto fleet = ParseFleet(text, "f.toml");
  REQUIRE_FALSE(fleet.ok());
  CHECK(absl::IsInvalidArgument(fleet.status()));
  return std::string(MessageOf(fleet.status()));
}

TEST_CASE("fleet file: quantities are read with their units, and a share as a number, too") {
  CHECK(*ParseRate("5 Gbit/s") == 625e6);
  CHECK(*ParseRate("100Mbit/s") == 12.5e6);
  CHECK(*ParseRate("1.5 GB/s") == 1.5e9);
  CHECK(*ParseBytes("128 MiB") == 128.0 * 1048576);
  CHECK(*ParseBytes("2 TB") == 2e12);
  CHECK(*ParseSeconds("20 ms") == Approx(0.02));
  CHECK(*ParseShare("3 %") == Approx(0.03));
  CHECK(*ParseShare("0.03") == Approx(0.03));
  CHECK_FALSE(ParseRate("5 Gbit").ok());
  CHECK_FALSE(ParseBytes("many").ok());
  CHECK_FALSE(ParseSeconds("").ok());
}

TEST_CASE("fleet file: what is not said has the daemons' defaults") {
  const auto fleet = ParseFleet(kSmall, "f.toml");
  REQUIRE(fleet.ok());
  CHECK(fleet->model.bytes == 2e9);
  CHECK(fleet->sites.at(0).streams == 0);
  CHECK_FALSE(fleet->trainer.codec.has_value());
  CHECK(fleet->trainer.history == 4);
}

TEST_CASE("fleet file: every codec's speeds have keys, and the table's values without them") {
  const std::string speeds = std::string(kSmall) + "[speeds]\n";
  const auto usual = ParseFleet(kSmall, "f.toml");
  REQUIRE(usual.ok());
  for (const Coder& coder : Coders()) {
    const std::string name = kernels::NameOf(coder.codec);
    CAPTURE(name);
    CHECK(usual->speeds.codecs[coder.codec].encode == coder.usual_speeds.encode);
    CHECK(usual->speeds.codecs[coder.codec].decode == coder.usual_speeds.decode);
    const auto said =
        ParseFleet(speeds + name + "-encode = 5\n" + name + "-decode = \"7 M\"\n", "f.toml");
    REQUIRE(said.ok());
    CHECK(said->speeds.codecs[coder.codec].encode == 5);
    CHECK(said->speeds.codecs[coder.codec].decode == 7e6);
    const bool history = coder.read_need != nullptr;
    CHECK(ParseFleet(speeds + name + "-history-encode = 5\n", "f.toml").ok() == history);
    CHECK(ParseFleet(speeds + name + "-history-decode = 5\n", "f.toml").ok() == history);
  }
}

TEST_CASE("fleet file: limits of rate are of whoever serves, the trainer or a site's relays") {
  const auto fleet = ParseFleet(std::string(kSmall) + R"(rate-limit-per-site = "8 Mbit/s"
rate-limit-per-receiver = 7
[trainer]
rate-limit = "2 GB/s"
rate-limit-per-site = "1 GB/s"
)",
                                "f.toml");
  REQUIRE(fleet.ok());
  CHECK(fleet->trainer.rate_limit == 2e9);
  CHECK(fleet->trainer.rate_limit_per_site == 1e9);
  CHECK(fleet->trainer.rate_limit_per_receiver == 0);
  CHECK(fleet->sites.at(0).rate_limit_per_site == 1e6);
  CHECK(fleet->sites.at(0).rate_limit_per_receiver == 7);
}

TEST_CASE("fleet file: mistakes are named with their line") {
  CHECK(Refusal(std::string(kSmall) + "roundtrip = \"1 ms\"\n")
            .find("f.toml:5: unknown key \"site.roundtrip\"; the keys here are ") == 0);
  CHECK(Refusal("[model]\nbytes = \"2 GB\"\nsize = 3\n")
            .find("f.toml:3: unknown key \"model.size\"") == 0);
  CHECK(Refusal("colour = 1\n" + std::string(kSmall)).find("f.toml:1: unknown key \"colour\"") ==
        0);
  CHECK(Refusal("[model]\nbytes = \"2 parsecs\"\n")
            .find("f.toml:2: model.bytes: \"2 parsecs\" is not like") == 0);
  CHECK(Refusal("[model]\nbytes = [1]\n").find("f.toml:2: model.bytes: expected") == 0);
  CHECK(Refusal(std::string(kSmall) + "streams = 65\n")
            .find("f.toml:5: site.streams wants a whole number within 0 .. 64") == 0);
  CHECK(
      Refusal(std::string(kSmall) + "upstream = \"mars\"\n").find("f.toml:5: site rollout: its") ==
      0);
  CHECK(Refusal(std::string(kSmall) + "relays = 2\n").find("f.toml:5: site rollout has 1") == 0);
  CHECK(Refusal(std::string(kSmall) + "receivers = 20000\nfan-out = 2\n")
            .find("f.toml:6: site rollout: a sender that assigns") == 0);
  CHECK(Refusal(std::string(kSmall) + "codec = \"best\"\n").find("there is no codec best") !=
        std::string::npos);
  CHECK(
      Refusal(std::string(kSmall) + "machine = \"here\"\n").find("there is no [[machine]] here") !=
      std::string::npos);
  CHECK(Refusal("[model]\nbytes = 5\n").find("a fleet wants a [[site]]") != std::string::npos);
  CHECK(Refusal("[[site]]\nname = \"a\"\n").find("[model] wants bytes") != std::string::npos);
  CHECK(Refusal("[site]\nname = \"a\"\n").find("each site begins with [[site]]") !=
        std::string::npos);
  CHECK(Refusal("site = [1]\n").find("each site begins with [[site]]") != std::string::npos);
  CHECK(
      Refusal(std::string(kSmall) + "[speeds]\ndiff = 0\n").find("speeds.diff: 0 is not within") !=
      std::string::npos);
  CHECK(Refusal("[model\n").find("f.toml:1: ") == 0);
}

TEST_CASE("fleet file: what would do nothing is refused, with what to do instead") {
  const std::string machine = "[[machine]]\nname = \"here\"\ncores = 2\n";
  const std::string model = "[model]\nbytes = \"2 GB\"\n", site = "[[site]]\nname = \"rollout\"\n";
  const std::string beside = "machine = \"here\"\ncores = 8\n";
  CHECK(Refusal(model + site + "memory = \"1 GB/s\"\n") ==
        "f.toml:5: site.memory: only the trainer's diff is predicted by the bandwidth of memory; "
        "leave it out");
  CHECK(
      Refusal(model + machine + machine + site) ==
      "f.toml:7: machine.name: there is a [[machine]] here before; give this one another name, or "
      "make one of both");
  CHECK(Refusal(model + machine + site + beside) ==
        "f.toml:9: site.cores: the node has those of [[machine]] here; leave it out");
  CHECK(Refusal(model + machine + "[trainer]\n" + beside + site) ==
        "f.toml:8: trainer.cores: the node has those of [[machine]] here; leave it out");
  CHECK(Refusal(model + machine + "[trainer]\nmemory = \"1 GB/s\"\nmachine = \"here\"\n" + site) ==
        "f.toml:7: trainer.memory: the trainer has that of [[machine]] here; leave it out");
  CHECK(Refusal(model + "[[machine]]\n[[machine]]\n" + site).find("a [[machine]] wants a name") !=
        std::string::npos);
  const auto good = ParseFleet(model + machine + site + "machine = \"here\"\n", "f.toml");
  REQUIRE(good.ok());
  CHECK(good->sites.at(0).cores == 2);
}

TEST_CASE("fleet file: a missing file is reported as not found") {
  CHECK(absl::IsNotFound(ReadFleet("/no/such/fleet.toml").status()));
}

TEST_CASE("fleet file: samples are read, and predicted") {
  size_t read = 0;
  for (const std::filesystem::path folder : {DELTAWIRE_SAMPLE_DIR, DELTAWIRE_FLEETS_DIR}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("fleet") && folder.filename() != "fleets") continue;
      if (entry.path().extension() != ".toml") continue;
      CAPTURE(name);
      const auto fleet = ReadFleet(entry.path().string());
      REQUIRE(fleet.ok());
      CHECK(Predict(*fleet).ok());
      ++read;
    }
  }
  CHECK(read >= 4);
}

}  // namespace
}  // namespace deltawire::plan::fleet_file_test
