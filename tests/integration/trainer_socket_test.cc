// The trainer's socket among other users of the machine, and a model's directory that somebody
// removes: who is trusted, and what is made anew. Other users are played where this runs as root.
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "common/base/acceptor.h"
#include "common/layout/model_dir.h"
#include "sender/export/client/half_mapping.h"
#include "sender/export/client/sender_socket.h"
#include "tests/support/daemons.h"
#include "tests/support/forked.h"
#include "tests/support/rank_model.h"
#include "tests/support/temp_dir.h"

namespace deltawire::testing::trainer_socket_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = "m";
constexpr uid_t kOther = 65534;

bool Has(const Status& status, const std::string& part) {
  CAPTURE(status, part);
  const bool has = status.message().find(part) != std::string::npos;
  CHECK(has);
  return has;
}

void GiveAway(const fs::path& path) { REQUIRE(::chown(path.c_str(), kOther, kOther) == 0); }

void OpenToAll(const fs::path& path) {
  fs::permissions(path, fs::perms::all & ~fs::perms::group_write & ~fs::perms::others_write);
}

/// Registers with the sender at `socket`, soon.
Status Register(const fs::path& socket) {
  TrainerClient client(socket, kModel, 0, 1, std::chrono::seconds(2));
  return client.Register(RankLayout(), {}).status();
}

Status Publish(TrainerClient& client, uint64_t version) {
  DW_ASSIGN_OR_RETURN(const auto offload, client.Begin(version));
  const Layout& layout = *client.layout();
  std::vector<uint32_t> all(layout.size());
  for (uint32_t t = 0; t < layout.size(); ++t) all[t] = t;
  for (uint64_t i = 0; i < layout.total_bytes(); ++i) offload->data()[i] = RankByte(version, i);
  DW_RETURN_IF_ERROR(offload->Written(all));
  DW_RETURN_IF_ERROR(offload->Ready());
  return client.WaitPublished(version).status();
}

}  // namespace

TEST_CASE("a trainer does not take another user's socket for its sender's") {
  if (::geteuid() != 0) return;
  ShmDir root;
  OpenToAll(root.path());
  const fs::path squatted = root.path() / "deltawire";
  fs::create_directory(squatted);
  GiveAway(squatted);
  const fs::path socket = squatted / "trainer.sock";
  UniqueFd listener;
  const Holder stranger([&] {
    if (::setgid(kOther) != 0 || ::setuid(kOther) != 0) return false;
    auto listening = ListenUnix(socket);
    if (listening.ok()) listener = *std::move(listening);
    return listener.get() >= 0;
  });
  const Status refused = Register(socket);
  CHECK(absl::IsPermissionDenied(refused));
  Has(refused, fmt::format("process {}", stranger.pid()));
  Has(refused, "runs as user 65534");
}

TEST_CASE("a trainer does not go by a place that another user can change") {
  if (::geteuid() != 0) return;
  ShmDir root;
  OpenToAll(root.path());
  SenderProcess sender(root.path());
  const fs::path theirs = root.path() / "theirs";
  fs::create_directory(theirs);
  SECTION("a directory on the way belongs to it") {
    GiveAway(theirs);
    fs::create_symlink(sender.socket(), theirs / "trainer.sock");
    const Status refused = Register(theirs / "trainer.sock");
    CHECK(absl::IsPermissionDenied(refused));
    Has(refused, "theirs belongs to user 65534");
  }
  SECTION("all users may write into a directory on the way") {
    fs::permissions(theirs, fs::perms::all);
    fs::create_symlink(sender.socket(), theirs / "trainer.sock");
    Has(Register(theirs / "trainer.sock"), "theirs may be written by all users");
    // But where they may not replace what is not theirs.
    fs::permissions(theirs, fs::perms::all | fs::perms::sticky_bit);
    CHECK(Register(theirs / "trainer.sock").ok());
  }
}

TEST_CASE("in a user namespace, a stranger of outside is not taken for the sender") {
  if (::geteuid() != 0) return;
  ShmDir root;
  OpenToAll(root.path());
  const fs::path squatted = root.path() / "deltawire", socket = squatted / "trainer.sock";
  fs::create_directory(squatted);
  GiveAway(squatted);
  UniqueFd listener;
  const Holder stranger([&] {
    if (::setgid(kOther) != 0 || ::setuid(kOther) != 0) return false;
    auto listening = ListenUnix(socket);
    if (!listening.ok()) return false;
    listener = *std::move(listening);
    return ::chmod(socket.c_str(), 0777) == 0;  // root in there may not do all things
  });
  Forked inside([&] {
    if (::unshare(CLONE_NEWUSER) != 0) ::_exit(9);
    std::ofstream("/proc/self/uid_map") << "0 0 1";
    if (::geteuid() != 0) ::_exit(9);
    const Status refused = LookAtSender(socket).status();
    ::_exit(absl::IsPermissionDenied(refused) ? 0 : 1);
  });
  const int ended = WEXITSTATUS(inside.Wait());
  if (ended == 9) std::printf("SKIPPED: this machine allows no user namespaces\n");
  CHECK((ended == 0 || ended == 9));
}

TEST_CASE("a sender's socket with a path of full length is known by that path") {
  TempDir dir;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string path = dir.path() / "";
  path.resize(sizeof address.sun_path, 's');
  path.copy(address.sun_path, path.size());  // all of it, without a NUL
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  const fs::path shorter = dir.path() / "link";
  fs::create_symlink(path, shorter);
  const auto found = LookAtSender(shorter);
  REQUIRE(found.status() == absl::OkStatus());
  REQUIRE(found->has_value());
  CHECK((*found)->bound == path);
}

TEST_CASE("a sender whose socket was removed is to be restarted, and has not gone") {
  ShmDir root;
  SenderProcess sender(root.path());
  TrainerClient client(sender.socket(), kModel);
  REQUIRE(client.Register(RankLayout(), {}).ok());
  fs::remove(sender.socket());
  const Status refused = client.Register(RankLayout(), {}).status();  // by the same connection
  CHECK(absl::IsUnavailable(refused));
  Has(refused, fmt::format("no sender listens at {}", sender.socket()));
  Has(refused, "its socket was removed: restart it");
}

TEST_CASE("a sender does not listen for trainers in another user's directory") {
  if (::geteuid() != 0) return;
  ShmDir root;
  const fs::path theirs = root.path() / "theirs";
  fs::create_directory(theirs);
  GiveAway(theirs);
  const auto child = Spawn(
      "deltawire-sender",
      {"--data-dir", theirs.string(), "--control-listen", fmt::format("127.0.0.1:{}", FreePort()),
       "--bulk-listen", fmt::format("127.0.0.1:{}", FreePort())},
      root.path() / "log");
  CHECK(child->Wait(std::chrono::seconds(20)) == 1);
  Has(absl::UnknownError(ReadText(root.path() / "log")), "theirs belongs to user 65534");
}

TEST_CASE("a sender hears no trainer of another user, whatever the socket's mode") {
  if (::geteuid() != 0) return;
  ShmDir root;
  SenderProcess sender(root.path());
  REQUIRE(Eventually([&] { return Register(sender.socket()).ok(); }));
  OpenToAll(root.path());
  OpenToAll(sender.dir());
  fs::permissions(sender.socket(), fs::perms::all);
  Forked stranger([&] {
    if (::setgid(kOther) != 0 || ::setuid(kOther) != 0) ::_exit(2);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    sender.socket().copy(address.sun_path, sizeof address.sun_path - 1);
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) ::_exit(3);
    char byte;
    ::_exit(::read(fd.get(), &byte, 1) <= 0 ? 0 : 4);  // gRPC's server speaks first
  });
  CHECK(stranger.Wait() == 0);
  CHECK(Register(sender.socket()).ok());
}

TEST_CASE("a half that is a link, or another user's file, is not mapped") {
  TempDir dir;
  const fs::path half = dir.path() / "half", link = dir.path() / "link";
  std::ofstream(half) << "0123456789";
  CHECK(HalfMapping::Map(half, ::geteuid()).ok());
  fs::create_symlink(half, link);
  CHECK(!HalfMapping::Map(link, ::geteuid()).ok());
  CHECK(!HalfMapping::Map(dir.path(), ::geteuid()).ok());
  if (::geteuid() != 0) return;
  GiveAway(half);
  CHECK(absl::IsPermissionDenied(HalfMapping::Map(half, 0).status()));
  CHECK(HalfMapping::Map(half, kOther).ok());
}

TEST_CASE("a model whose directory was removed is made anew under the living sender") {
  ShmDir root;
  SenderProcess sender(root.path());
  TrainerClient client(sender.socket(), kModel);
  REQUIRE(client.Register(RankLayout(), {}).ok());
  REQUIRE(Publish(client, 1).ok());
  const std::string lineage = sender.Status(kModel).newest().id().lineage();
  ReceiverProcess receiver(root.path(), "r", sender.control(), kModel);
  REQUIRE(receiver.WaitCommitted(1));
  const fs::path dir = sender.dir() / kModel;
  fs::remove_all(dir);
  SECTION("by the next offload") { REQUIRE(Publish(client, 2) == absl::OkStatus()); }
  SECTION("by registering") {
    const bool replace = GENERATE(false, true);
    const auto registered = client.Register(RankLayout(), {}, {.replace = replace});
    REQUIRE(registered.ok());
    CHECK(registered->empty());
    REQUIRE(Publish(client, 2) == absl::OkStatus());
  }
  CHECK(sender.Status(kModel).newest().id().lineage() != lineage);
  CHECK(ReadText(sender.log()).find("made anew under another lineage") != std::string::npos);
  REQUIRE(receiver.WaitCommitted(2));
}

TEST_CASE("a model's directory whose name something else has is not made anew over that") {
  const bool link = GENERATE(true, false);
  ShmDir root;
  SenderProcess sender(root.path());
  TrainerClient client(sender.socket(), kModel);
  REQUIRE(client.Register(RankLayout(), {}).ok());
  REQUIRE(Publish(client, 1).ok());
  const fs::path dir = sender.dir() / kModel, elsewhere = root.path() / "elsewhere";
  fs::remove_all(dir);
  fs::create_directory(elsewhere);
  if (link) {
    fs::create_directory_symlink(elsewhere, dir);
  } else {
    std::ofstream(dir) << "a file";
  }
  for (const Status& refused :
       {client.Begin(2).status(), client.Register(RankLayout(), {}, {.replace = true}).status()}) {
    CHECK(absl::IsFailedPrecondition(refused));
    Has(refused, link ? "a link has its name now" : "a file has its name now");
  }
  CHECK(fs::is_empty(elsewhere));
  fs::remove(dir);
  CHECK(Publish(client, 2) == absl::OkStatus());
}

}  // namespace deltawire::testing::trainer_socket_test
