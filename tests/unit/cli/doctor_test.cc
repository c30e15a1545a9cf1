// What doctor makes of a machine, and that it finds this one.
#include "cli/doctor.h"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <map>

#include "common/base/human.h"
#include "common/layout/layout.h"
#include "common/layout/safetensors.h"
#include "tests/support/forked.h"
#include "tests/support/temp_dir.h"

namespace deltawire::cli::doctor_test {
namespace {

using Level = Finding::Level;

MachineFacts Good() {
  return {.kernel = "6.1.0-18-amd64",
          .data_dir = "/dev/shm/deltawire",
          .in_memory = true,
          .free_bytes = 60ull << 30,
          .memory_bytes = 64ull << 30,
          .mount_point = "/dev/shm",
          .huge_pages = "advise",
          .descriptors = 65536,
          .socket_buffer = 64 << 20,
          .kernels = "AVX2",
          .gpu_name = "NVIDIA H100",
          .program_version = "1.2.3"};
}

/// Those that are not good, by what they are about.
std::map<std::string, Finding> Bad(const MachineFacts& facts) {
  std::map<std::string, Finding> bad;
  for (const Finding& f : Judge(facts)) {
    CHECK(f.remedy.empty() == (f.level == Level::kGood));
    if (f.level != Level::kGood) bad[f.about] = f;
  }
  return bad;
}

TEST_CASE("doctor: a machine that has all it needs gets no advice") {
  CHECK(Bad(Good()).empty());
  MachineFacts f = Good();
  f.peers = {{.kind = "sender",
              .address = "10.0.0.1:7700",
              .program_version = "1.2.3",
              .bulk_address = "10.0.0.1:7701",
              .connect_seconds = 0.02},
             {.kind = "receiver", .address = "10.0.0.2:7710", .program_version = "1.2.3"}};
  CHECK(Bad(f).empty());
  // Kernel, directory, leases, huge pages, descriptors, buffers, kernels, the GPU, and three of the
  // peers.
  CHECK(Judge(f).size() == 11);
}

TEST_CASE("doctor: what diffs on this machine is said, and that a GPU is missing is no problem") {
  const auto said = [](const MachineFacts& f) {
    for (const Finding& found : Judge(f)) {
      if (found.about == "GPU") return found.text;
    }
    return std::string();
  };
  MachineFacts f = Good();
  CHECK_THAT(said(f), Catch::StartsWith("NVIDIA H100; "));
  for (const auto& [error, why] :
       {std::pair(kernels::GpuError::kNotBuilt, "this program was built without CUDA"),
        std::pair(kernels::GpuError::kNoDevice, "CUDA: this machine has no NVIDIA driver")}) {
    f.gpu = {error, why};
    CHECK(Bad(f).empty());
    CHECK(said(f) == std::string(why) + "; the CPU diffs");
  }
}

TEST_CASE("doctor: a peer's clock is compared, and the time that its answer took is no skew") {
  MachineFacts f = Good();
  f.peers = {{.kind = "sender", .address = "10.0.0.1:7700", .program_version = "1.2.3"}};
  PeerFacts& peer = f.peers[0];
  peer.clock_ahead_seconds = 0.1;
  CHECK(Bad(f).empty());
  peer.clock_ahead_seconds = -7200;
  peer.clock_doubt_seconds = 0.02;
  CHECK(Bad(f).at("sender 10.0.0.1:7700").level == Level::kNote);
  CHECK(Bad(f).at("sender 10.0.0.1:7700").text ==
        fmt::format("its clock is {} behind ours, give or take 20.0 ms", HumanSeconds(7200)));
  peer.clock_ahead_seconds = 3;
  CHECK(Bad(f).at("sender 10.0.0.1:7700").text.find("ahead of ours") != std::string::npos);
  peer.clock_doubt_seconds = 2.9;
  CHECK(Bad(f).empty());
}

TEST_CASE("doctor: certificates are told before they end, and credentials that cannot be read") {
  MachineFacts f = Good();
  f.certificates = {{.subject = "/CN=a", .valid_days = 300}};
  CHECK(Bad(f).empty());
  f.certificates = {{.subject = "/CN=a", .valid_days = 12}};
  CHECK(Bad(f).at("certificates").level == Level::kNote);
  CHECK(Bad(f).at("certificates").text == "/CN=a is valid for 12 more days");
  f.certificates = {{.subject = "/CN=a", .valid_days = -1}};
  CHECK(Bad(f).at("certificates").level == Level::kProblem);
  f.certificates = {{.subject = "/CN=a", .valid_days = 12, .valid_already = false}};
  CHECK(Bad(f).at("certificates").text == "/CN=a is not valid yet");
  f.certificates = {};
  f.credentials = absl::NotFoundError("open c.toml: No such file");
  CHECK(Bad(f).at("certificates").level == Level::kProblem);
}

TEST_CASE("doctor: a mount's huge pages are its own option") {
  const auto huge = [](const std::string& options) {
    const auto mount =
        ParseMountLine("25 30 0:23 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs " + options);
    REQUIRE(mount.has_value());
    CHECK(mount->device == "0:23");
    CHECK(mount->point == "/dev/shm");
    return mount->huge_pages;
  };
  CHECK(huge("rw,size=1024k,huge=within_size,inode64") == "within_size");
  CHECK(huge("rw,inode64") == "never");
  CHECK_FALSE(ParseMountLine("25 30 0:23 / /dev/shm rw,nosuid shared:4").has_value());
  CHECK_FALSE(ParseMountLine("").has_value());
}

TEST_CASE("doctor: what is missing is named with its remedy") {
  const auto one = [](auto change, const std::string& about, Level level, const std::string& text,
                      const std::string& remedy) {
    MachineFacts f = Good();
    change(f);
    const auto bad = Bad(f);
    CAPTURE(about);
    REQUIRE(bad.size() == 1);
    REQUIRE(bad.contains(about));
    const Finding& found = bad.at(about);
    CHECK(found.level == level);
    CHECK(found.text.find(text) != std::string::npos);
    CHECK(found.remedy.find(remedy) != std::string::npos);
  };
  one([](MachineFacts& f) { f.kernel = "4.18.0-553"; }, "kernel", Level::kProblem, "4.18", "5.3");
  one([](MachineFacts& f) { f.data_dir_usable = absl::NotFoundError("no such directory"); },
      "data directory", Level::kProblem, "no such directory", "--data-dir");
  one(
      [](MachineFacts& f) {
        f.data_dir_usable = absl::PermissionDeniedError("a file cannot be made in /d");
      },
      "data directory", Level::kProblem, "/d", "--data-dir");
  one(
      [](MachineFacts& f) {
        f.data_dir_usable = absl::PermissionDeniedError("a file cannot be made in /d");
        f.data_dir_owner = "deltawire";
      },
      "data directory", Level::kNote, "/d", "sudo -u deltawire");
  one([](MachineFacts& f) { f.in_memory = false; }, "data directory", Level::kNote, "not in memory",
      "tmpfs");
  one([](MachineFacts& f) { f.free_bytes = 16ull << 30; }, "data directory", Level::kNote,
      "17.2 GB free", "size=");
  one([](MachineFacts& f) { f.no_leases = "fs.leases-enable is 0"; }, "leases", Level::kNote,
      "leases-enable is 0", "sysctl");
  one([](MachineFacts& f) { f.huge_pages = "never"; }, "huge pages", Level::kNote,
      "/dev/shm is mounted with huge=never", "mount -o remount,huge=advise /dev/shm");
  one([](MachineFacts& f) { f.logind_removes = "alice"; }, "logout", Level::kNote,
      "the files of alice", "enable-linger alice");
  one([](MachineFacts& f) { f.descriptors = 1024; }, "descriptors", Level::kNote, "1024", "ulimit");
  one([](MachineFacts& f) { f.socket_buffer = 212992; }, "socket buffers", Level::kNote, "213 kB",
      "sysctl");
  one(
      [](MachineFacts& f) {
        f.gpu = {kernels::GpuError::kOldDriver, "CUDA: it knows 12.4"};
      },
      "GPU", Level::kNote, "too old", "it knows 12.4");
  PeerFacts peer{
      .kind = "sender", .address = "a:1", .program_version = "1.2.3", .bulk_address = "a:2"};
  one(
      [peer](MachineFacts& f) mutable {
        peer.reached = absl::UnavailableError("sender a:1: nothing listens there; start it");
        peer.diagnosis = Diagnosis{"nothing listens there", "start it", true};
        f.peers = {peer};
      },
      "sender a:1", Level::kProblem, "nothing listens", "start it");
  one(
      [peer](MachineFacts& f) mutable {
        peer.reached = absl::FailedPreconditionError("sender a:1: a receiver listens there");
        f.peers = {peer};
      },
      "sender a:1", Level::kProblem, "a receiver listens there", "log");
  one(
      [peer](MachineFacts& f) mutable {
        peer.program_version = "1.0.0";
        f.peers = {peer};
      },
      "sender a:1", Level::kNote, "deltawire 1.0.0; here is 1.2.3", "one version");
  one(
      [peer](MachineFacts& f) mutable {
        peer.exposed = true;
        f.peers = {peer};
      },
      "sender a:1", Level::kNote, "without encryption", "trust");
  one(
      [peer](MachineFacts& f) mutable {
        peer.bulk_reached = absl::UnavailableError("timed out");
        f.peers = {peer};
      },
      "bulk port a:2", Level::kProblem, "timed out", "bulk-listen");
}

TEST_CASE("doctor: the certificate of a peer that answers is told before it ends") {
  MachineFacts f = Good();
  f.peers = {{.kind = "sender",
              .address = "a:1",
              .tls = security::PeerTls{.certificate = {.subject = "/CN=trainer"}},
              .certificate_days = 12,
              .program_version = "1.2.3"}};
  const auto bad = Bad(f);
  REQUIRE(bad.contains("sender a:1"));
  CHECK(bad.at("sender a:1").text == "its certificate /CN=trainer is valid for 12 more days");
  f.peers[0].certificate_days = 300;
  CHECK(Bad(f).empty());
}

TEST_CASE("doctor: a data directory that is full is a problem") {
  MachineFacts f = Good();
  f.free_bytes = 0;
  const auto bad = Bad(f);
  REQUIRE(bad.contains("data directory"));
  CHECK(bad.at("data directory").level == Level::kProblem);
  CHECK(bad.at("data directory").remedy.find("remount,size=... /dev/shm") != std::string::npos);
}

TEST_CASE("doctor: this machine is looked at, and a peer that is not there is a finding") {
  const TempDir dir;
  const MachineFacts f =
      Look({.data_dir = dir.path(), .sender = "127.0.0.1:1", .receiver = "127.0.0.1:1"});
  CHECK(f.data_dir_usable == absl::OkStatus());
  CHECK(f.kernel.find('.') != std::string::npos);
  CHECK(f.memory_bytes > 0);
  CHECK(f.free_bytes > 0);
  CHECK(f.descriptors > 0);
  CHECK_FALSE(f.kernels.empty());
  CHECK(std::filesystem::is_empty(dir.path()));
  REQUIRE(f.peers.size() == 2);
  CHECK_FALSE(f.peers[0].reached.ok());
  REQUIRE(f.peers[0].diagnosis.has_value());
  CHECK(f.peers[0].diagnosis->absent);
  CHECK_FALSE(f.peers[1].reached.ok());
  CHECK_FALSE(f.data_dir_missing);
  const MachineFacts memory = Look({.data_dir = "/dev/shm"});
  CHECK(memory.mount_point == "/dev/shm");
  CHECK_FALSE(memory.huge_pages.empty());
  const MachineFacts none = Look({.data_dir = dir.path() / "no" / "ne"});
  CHECK(none.data_dir_usable == absl::OkStatus());
  CHECK(none.data_dir_missing);
  CHECK(none.free_bytes > 0);
  CHECK(none.peers.empty());
  CHECK(std::filesystem::is_empty(dir.path()));
}

TEST_CASE("doctor: a model is compared with the room that there is for it") {
  MachineFacts f = Good();
  f.model = "/ckpt";
  f.model_bytes = 10ull << 30;
  const auto about = [&](uint64_t room_gib) {
    f.room_bytes = room_gib << 30;
    const auto all = Judge(f);
    const auto found = std::ranges::find(all, "model /ckpt", &Finding::about);
    REQUIRE(found != all.end());
    return *found;
  };
  CHECK(about(25).level == Level::kGood);
  CHECK(about(25).text == "10.7 GB; /dev/shm/deltawire has room for 2.5 of it");
  CHECK(about(20).level == Level::kGood);
  CHECK(about(19).level == Level::kNote);
  CHECK(about(10).level == Level::kNote);
  CHECK(about(9).level == Level::kProblem);
  f.model_read = absl::NotFoundError("/ckpt has no weights");
  CHECK(about(25).text == "/ckpt has no weights");

  const TempDir dir;
  const std::string header = BuildSafetensorsHeader(*Layout::Create({{"a", DType::kU8, {5000}}}));
  std::ofstream(dir.path() / "model.safetensors") << header << std::string(5000, 'x');
  const MachineFacts here = Look({.data_dir = "/dev/shm", .model = dir.path()});
  CHECK(here.model_read == absl::OkStatus());
  CHECK(here.model_bytes == 5000);
  CHECK(here.room_bytes > 0);
  CHECK_FALSE(Look({.data_dir = "/dev/shm", .model = dir.path() / "none"}).model_read.ok());
}

TEST_CASE("doctor: another user's directory is told with its owner") {
  if (::geteuid() != 0) {
    WARN("SKIPPED: only root can give a directory away");
    return;
  }
  const TempDir dir;
  REQUIRE(::chown(dir.path().c_str(), 12345, 12345) == 0);
  testing::Forked operator_of_the_node([&] {
    if (::setgid(12346) != 0 || ::setuid(12346) != 0) ::_exit(1);
    const MachineFacts f = Look({.data_dir = dir.path()});
    if (f.data_dir_usable.code() != StatusCode::kPermissionDenied) ::_exit(2);
    if (f.data_dir_owner != "'#12345'") ::_exit(3);
  });
  const int ended = operator_of_the_node.Wait();
  REQUIRE(WIFEXITED(ended));
  CHECK(WEXITSTATUS(ended) == 0);
}

TEST_CASE("doctor: socket buffers grow to the third number of tcp_rmem") {
  CHECK(TunedLimit("4096 131072 6291456") == 6291456);
  CHECK(TunedLimit("4096\t16384\t4194304") == 4194304);
  CHECK(TunedLimit("212992") == 0);
  CHECK(TunedLimit("") == 0);
}

}  // namespace
}  // namespace deltawire::cli::doctor_test
