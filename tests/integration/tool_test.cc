// The command line tool against real daemons: what `deltawire publish` does with a checkpoint that
// others write to while it reads, beside other publishers, and to receivers of another layout.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <set>

#include "common/layout/model_dir.h"
#include "tests/integration/tool_run.h"
#include "tests/support/daemons.h"
#include "tests/support/forked.h"
#include "tests/support/layout_files.h"

namespace deltawire::testing::tool_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = "m";

std::vector<std::string> Publish(SenderProcess& sender, const fs::path& dir, uint64_t version) {
  (void)sender.Status(kModel);  // waits until the sender serves, since the tool does not wait
  return {"publish",  dir.string(),   "--model", kModel, "--version", std::to_string(version),
          "--socket", sender.socket()};
}

}  // namespace

TEST_CASE("wait --all ends when each attached receiver has the version, and names who has not") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 4, 4);
  REQUIRE(trainer.Publish(1).ok());
  ReceiverProcess follows(root.path(), "follows", sender.control(), kModel);
  ReceiverProcess waits(root.path(), "waits", sender.control(), kModel, {"--no-follow"});
  const auto wait = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"wait",    "--all", "--sender",  sender.control(),
                                     "--model", kModel,  "--at-least"};
    args.insert(args.end(), more.begin(), more.end());
    return Tool(root.path(), args);
  };
  REQUIRE(follows.WaitCommitted(1));
  Tool late = wait({"2", "--timeout", "0.3"});
  CHECK(late.Wait() == 1);
  INFO(late.Said());
  CHECK(Has(late.Said(), "1 of 2 attached receivers have committed version 1; behind: waits"));
  Tool few = wait({"3", "--timeout", "0.3"});
  CHECK(few.Wait() == 1);
  CHECK(Has(few.Said(), "and 3 are waited for"));
  // This one is waiting already when the second receiver is told to pull.
  Tool all = wait({"2"});
  Tool sync(root.path(), {"sync", "--receiver", waits.control()});
  CHECK(sync.Wait() == 0);
  CHECK(all.Wait() == 0);
  CHECK(Has(all.Said(), "m: version 1 or a later one committed by 2 receivers"));
  CHECK(waits.Status().committed().version() == 1);
}

TEST_CASE("certs adds nodes, keeps tokens, and makes no certificate that passes for another's") {
  ShmDir root;
  const fs::path keys = root.path() / "keys";
  const auto certs = [&](std::vector<std::string> nodes, const std::string& says = "") {
    nodes.insert(nodes.begin(), {"certs", keys.string()});
    Tool tool(root.path(), nodes);
    const int rc = tool.Wait();
    CHECK((rc == 0) == says.empty());
    CHECK(Has(tool.Said(), says));
  };
  certs({"alice:operator", "trainer=10.0.0.1", "--token"});
  const std::string token = ReadText(keys / "alice" / "token");
  const std::string certificate = ReadText(keys / "alice" / "certificate.pem");
  certs({"alice:operator", "bob:receiver+observer", "--token"});
  CHECK(ReadText(keys / "alice" / "token") == token);
  CHECK(ReadText(keys / "alice" / "certificate.pem") != certificate);
  const std::string principals = ReadText(keys / "principals.toml");
  CHECK(Has(principals, "name = \"bob\""));
  // Nothing is written by a run that is refused.
  certs({"alice:observer"}, "with other roles");
  certs({"eve=alice"}, "knows alice by that name");
  certs({"eve=mallory", "mallory:operator"}, "could then pass");
  certs({"eve", "eve"}, "is there twice");
  certs({"anonymous:operator"}, "is not NAME");
  CHECK(ReadText(keys / "principals.toml") == principals);
  CHECK_FALSE(fs::exists(keys / "eve"));
}

TEST_CASE("publish: a checkpoint that is overwritten while it is read is not published") {
  ShmDir root;
  SenderProcess sender(root.path());
  const Checkpoint checkpoint(root.path() / "step-1", 64, 2 << 20);
  REQUIRE(Tool(root.path(), Publish(sender, checkpoint.dir, 1)).Wait() == 0);
  ReceiverProcess receiver(root.path(), "r", sender.control(), kModel);
  REQUIRE(receiver.WaitCommitted(1));
  const bool cut = GENERATE(false, true);
  CAPTURE(cut);
  uint64_t version = 1;
  bool caught = false;
  // The scheduler decides whether the writer comes while the tool reads, so this repeats until it
  // does. In every round what is published must be of one fill.
  for (char fill = 'b'; fill < 'z' && !caught; ++fill) {
    const uint64_t next = version + 1;
    CAPTURE(fill, next);
    Tool tool(root.path(), Publish(sender, checkpoint.dir, next));
    Eventually([&] {
      return sender.Status(kModel).offloading_version() == next || !tool.child().Running();
    });
    if (cut) {
      fs::resize_file(checkpoint.file, checkpoint.data + checkpoint.bytes / 2);
    } else {
      REQUIRE(checkpoint.Overwrite(fill) == 0);
    }
    const int code = tool.Wait();
    INFO(tool.Said());
    if (code == 0) {
      version = next;
      REQUIRE(receiver.WaitCommitted(version));
    } else {
      REQUIRE(code == 1);
      CHECK(Has(tool.Said(), checkpoint.file.string()));
      CHECK((Has(tool.Said(), "while it was read") || Has(tool.Said(), "is being written")));
      CHECK(Eventually([&] { return sender.Status(kModel).offloading_version() == 0; }));
      CHECK(sender.Status(kModel).newest().id().version() == version);
      caught = Has(tool.Said(), "while it was read");
    }
    if (cut) {
      const Checkpoint again(checkpoint.dir, 64, 2 << 20, fill);
    }
    CHECK(Fills(receiver.dir()).size() == 1);
  }
  CHECK(caught);
  // Now nobody writes the checkpoint any more, so it is published.
  Tool tool(root.path(), Publish(sender, checkpoint.dir, version + 1));
  const int code = tool.Wait();
  INFO(tool.Said());
  REQUIRE(code == 0);
  REQUIRE(receiver.WaitCommitted(version + 1));
  CHECK(Fills(receiver.dir()) == Fills(checkpoint.dir));
}

TEST_CASE("publish says which files of a checkpoint it leaves out, and why") {
  ShmDir root;
  SenderProcess sender(root.path());
  const Checkpoint checkpoint(root.path() / "step-1", 2, 1 << 20);
  const std::string name = "model-00001-of-00001.safetensors";
  fs::copy(checkpoint.file, checkpoint.dir / name);
  WriteFile(checkpoint.dir / "model.safetensors.index.json",
            R"({"weight_map":{"t0":")" + name + R"(","t1":")" + name + R"("}})");
  WriteFile(checkpoint.dir / "tf_model.h5", "");
  fs::resize_file(checkpoint.dir / "tf_model.h5", kMaxSideFileBytes + 1);
  Tool tool(root.path(), Publish(sender, checkpoint.dir, 1));
  const int code = tool.Wait();
  INFO(tool.Said());
  REQUIRE(code == 0);
  CHECK(Has(tool.Said(), "left out: model.safetensors (model.safetensors.index.json decides"));
  CHECK(Has(tool.Said(), "left out: tf_model.h5 (weights in a format other than safetensors)"));
}

TEST_CASE("publish without --model takes the only registered model, and says when one is new") {
  ShmDir root;
  SenderProcess sender(root.path());
  (void)sender.Status(kModel);
  const Checkpoint one(root.path() / "run" / "step-1", 2, 1 << 20, 'a');
  const Checkpoint two(root.path() / "run" / "step-2", 2, 1 << 20, 'b');
  const auto publish = [&](const Checkpoint& checkpoint, std::vector<std::string> more) {
    std::vector<std::string> args = {"publish", checkpoint.dir.string(), "--socket",
                                     sender.socket()};
    args.insert(args.end(), more.begin(), more.end());
    return Tool(root.path(), args);
  };
  Tool first = publish(one, {"--model", "policy"});
  REQUIRE(first.Wait() == 0);
  CHECK_FALSE(Has(first.Said(), "new model"));  // there is no other that it could be mistaken for
  Tool second = publish(two, {});
  CHECK(second.Wait() == 0);
  INFO(second.Said());
  CHECK(Has(second.Said(), "policy: version 2 (lineage "));
  Tool typo = publish(one, {"--model", "polcy"});
  CHECK(typo.Wait() == 0);
  CHECK(Has(typo.Said(), "new model registered: polcy (others: policy)"));
  Tool which = publish(two, {});
  CHECK(which.Wait() == 2);
  CHECK(Has(which.Said(), "several models: choose one with --model (polcy, policy)"));
  Tool again = publish(two, {"--model", "polcy"});
  CHECK(again.Wait() == 0);
  CHECK_FALSE(Has(again.Said(), "new model"));

  Tool removed(root.path(), {"unregister", "polcy", "--sender", sender.control()});
  CHECK(removed.Wait() == 0);
  INFO(removed.Said());
  CHECK(Has(removed.Said(), "polcy: unregistered, "));
  CHECK_FALSE(fs::exists(sender.dir() / "polcy"));
  CHECK(fs::exists(sender.dir() / "policy"));
  Tool unknown(root.path(), {"unregister", "polcy", "--sender", sender.control()});
  CHECK(unknown.Wait() == 1);
  CHECK(Has(unknown.Said(), "it has: policy"));
}

TEST_CASE("unregister: receivers keep what they hold, and a live trainer is named") {
  ShmDir root;
  SenderProcess sender(root.path());
  const auto unregister = [&] {
    return Tool(root.path(), {"unregister", kModel, "--sender", sender.control()});
  };
  const Checkpoint checkpoint(root.path() / "step-1", 2, 1 << 20);
  REQUIRE(Tool(root.path(), Publish(sender, checkpoint.dir, 1)).Wait() == 0);
  ReceiverProcess receiver(root.path(), "r", sender.control(), kModel);
  REQUIRE(receiver.WaitCommitted(1));
  Tool watch(root.path(), {"watch", "--model", kModel, "--sender", sender.control()});
  REQUIRE(Eventually([&] { return Has(watch.Said(), "published"); }));
  {
    // It has registered the model, and then writes no version.
    TrainerClient trainer(sender.socket(), kModel);
    const auto opened = ModelDir::Open(checkpoint.dir);
    REQUIRE(opened.ok());
    REQUIRE(trainer.Register(opened->layout(), {}, {.keep_side_files = true}).ok());
    auto offload = trainer.Begin(2);
    REQUIRE(offload.ok());
    Tool writing = unregister();
    CHECK(writing.Wait() == 1);
    (*offload)->Abandon("not needed");
    offload->reset();
    Tool refused = unregister();
    CHECK(refused.Wait() == 1);
    INFO(refused.Said());
    CHECK(Has(refused.Said(), fmt::format("process {}", getpid())));
    CHECK(Has(refused.Said(), "is alive"));
  }
  std::string said;
  REQUIRE(Eventually([&] {  // the agent learns of the trainer's end a moment later
    Tool done = unregister();
    const int code = done.Wait();
    said = done.Said();
    return code == 0;
  }));
  INFO(said);
  CHECK_FALSE(fs::exists(sender.dir() / kModel));
  CHECK(watch.Wait() != 0);
  CHECK(Has(watch.Said(), "was unregistered from this sender"));
  CHECK(
      Eventually([&] { return Has(receiver.Status().message(), "no model \"m\" is registered"); }));
  CHECK(receiver.Status().committed().version() == 1);
  CHECK(Fills(receiver.dir()) == "a");
  CHECK(Has(ReadText(receiver.log()), "was unregistered"));
  // After a restart the sender knows nothing of it, and the name is free for another model.
  sender.Restart();
  const Checkpoint other(root.path() / "other", 3, 1 << 20, 'c');
  REQUIRE(Tool(root.path(), Publish(sender, other.dir, 1)).Wait() == 0);
  CHECK(Eventually([&] { return Fills(receiver.dir()) == "c"; }));
}

TEST_CASE("a forked child drops a trainer's client without waiting for threads that it lacks") {
  ShmDir root;
  SenderProcess sender(root.path());
  const Checkpoint checkpoint(root.path() / "step-1", 2, 1 << 20);
  const auto opened = ModelDir::Open(checkpoint.dir);
  REQUIRE(opened.ok());
  auto trainer = std::make_unique<TrainerClient>(sender.socket(), kModel);
  REQUIRE(trainer->Register(opened->layout(), {}).ok());
  Forked child([&] { trainer.reset(); });
  REQUIRE(Eventually([&] { return child.Ended().has_value(); }));
  CHECK(child.Wait() == 0);
  Tool refused(root.path(), {"unregister", kModel, "--sender", sender.control()});
  CHECK(refused.Wait() == 1);
  CHECK(Has(refused.Said(), "is alive"));
}

TEST_CASE("publish says what is wrong with the directory or the version, and what to do") {
  ShmDir root;
  SenderProcess sender(root.path());
  const Checkpoint one(root.path() / "run" / "step-1", 2, 1 << 20);
  const Checkpoint two(root.path() / "run" / "step-2", 2, 1 << 20);
  Tool above(root.path(), Publish(sender, root.path() / "run", 1));
  CHECK(above.Wait() == 2);
  CHECK(Has(above.Said(), "holds no weights, but"));
  CHECK(Has(above.Said(), "step-1"));
  CHECK(Has(above.Said(), "--watch"));
  REQUIRE(Tool(root.path(), Publish(sender, one.dir, 1)).Wait() == 0);
  Tool again(root.path(), Publish(sender, one.dir, 1));
  CHECK(again.Wait() == 1);
  CHECK(Has(again.Said(), "is not newer than the published version 1"));
  CHECK(Has(again.Said(), "--version N publishes"));
}

TEST_CASE("publish: an interruption ends in one line and 130, and in no version") {
  ShmDir root;
  SenderProcess sender(root.path());
  const Checkpoint checkpoint(root.path() / "step-1", 64, 4 << 20);
  const auto status = [&] {
    v1::SenderStatusResponse response;
    grpc::ClientContext context;
    (void)sender.orchestrator().GetStatus(&context, v1::SenderStatusRequest(), &response);
    return response.models_size() == 1 ? response.models(0) : v1::SenderModelStatus();
  };
  bool caught = false;
  uint64_t version = 0;
  while (!caught && ++version < 50) {
    Tool tool(root.path(), Publish(sender, checkpoint.dir, version));
    REQUIRE(Eventually(
        [&] { return status().offloading_version() == version || !tool.child().Running(); }));
    // A sender that is stopped before it has published keeps the tool waiting for sure.
    sender.child().Signal(SIGSTOP);
    kill(tool.child().pid(), SIGINT);
    const int code = tool.Wait();
    sender.child().Signal(SIGCONT);
    INFO(tool.Said());
    caught = code != 0;
    if (!caught) continue;  // it was published before the stop
    CHECK(code == 130);
    CHECK(Has(tool.Said(),
              fmt::format("deltawire publish: interrupted: version {} of m may not be published",
                          version)));
  }
  REQUIRE(caught);
  // The claim of a tool that ended before it attended its offload lasts for seconds.
  CHECK(Eventually(
      [&] { return Tool(root.path(), Publish(sender, checkpoint.dir, version + 1)).Wait() == 0; }));
}

TEST_CASE("publish: a second publisher is told who the first one is") {
  ShmDir root;
  SenderProcess sender(root.path());
  const Checkpoint a(root.path() / "a", 4, 1 << 20, 'a'), b(root.path() / "b", 4, 1 << 20, 'b');
  REQUIRE(Tool(root.path(), Publish(sender, a.dir, 1)).Wait() == 0);
  TrainerClient first(sender.socket(), kModel);
  const auto opened = ModelDir::Open(a.dir);
  REQUIRE(opened.ok());
  REQUIRE(first.Register(opened->layout(), {}, {.keep_side_files = true}).ok());
  auto offload = first.Begin(2);
  REQUIRE(offload.ok());
  CHECK((*offload)->attempt() != 0);
  Tool second(root.path(), Publish(sender, b.dir, 2));
  const int code = second.Wait();
  INFO(second.Said());
  CHECK(code == 1);
  CHECK(Has(second.Said(), fmt::format("process {}", getpid())));
  for (size_t t = 0; t < 4; ++t) REQUIRE((*offload)->Write(t, opened->data(t)).ok());
  REQUIRE((*offload)->Ready().ok());
  const auto published = first.WaitPublished(2);
  REQUIRE(published.ok());
  CHECK(published->identity.attempt == (*offload)->attempt());
  // A publisher is also refused when its version is published already.
  Tool third(root.path(), Publish(sender, b.dir, 2));
  CHECK(third.Wait() == 1);
  INFO(third.Said());
  CHECK(Has(third.Said(), "not newer"));
}

TEST_CASE("publish --replace: receivers go over to the other layout") {
  ShmDir root;
  SenderProcess sender(root.path());
  const Checkpoint a(root.path() / "a", 4, 1 << 20, 'a'), b(root.path() / "b", 7, 3 << 19, 'b');
  REQUIRE(Tool(root.path(), Publish(sender, a.dir, 1)).Wait() == 0);
  ReceiverProcess receiver(root.path(), "r", sender.control(), kModel);
  REQUIRE(receiver.WaitCommitted(1));
  const auto lineage = receiver.Status().committed().lineage();
  Tool refused(root.path(), Publish(sender, b.dir, 2));
  CHECK(refused.Wait() == 1);
  // A client that watches the model must not keep the old layout in use.
  Tool watch(root.path(), {"watch", "--model", kModel, "--sender", sender.control()});
  REQUIRE(Eventually([&] { return Has(watch.Said(), "published"); }));
  auto args = Publish(sender, b.dir, 1);
  args.push_back("--replace");
  Tool replaced(root.path(), args);
  const int code = replaced.Wait();
  INFO(replaced.Said());
  INFO(ReadText(sender.log()) + ReadText(receiver.log()));
  REQUIRE(code == 0);
  REQUIRE(Eventually([&] {
    const auto committed = receiver.Status().committed();
    return committed.version() == 1 && committed.lineage() != lineage &&
           Fills(receiver.dir()) == "b";
  }));
}

TEST_CASE("doctor says that a daemon is of the other role, and how to name the right one") {
  ShmDir root;
  SenderProcess sender(root.path());
  (void)sender.Status(kModel);
  Tool doctor(root.path(), {"doctor", "--receiver", sender.control()});
  CHECK(doctor.Wait() != 0);
  INFO(doctor.Said());
  CHECK(Has(doctor.Said(), "a sender listens there, and no receiver"));
  CHECK(Has(doctor.Said(), "--receiver HOST:PORT"));
  CHECK_FALSE(Has(doctor.Said(), "look at its log"));
}

TEST_CASE("limits prints a drop-in for a unit, by the daemon's own options") {
  ShmDir root;
  const Checkpoint model(root.path() / "policy", 3, 1 << 20);
  const fs::path config = root.path() / "sender.toml";
  std::ofstream(config) << "delta-log = \"1GiB\"\n";
  Tool tool(root.path(), {"limits", "sender", model.dir.string(), "--config", config.string(),
                          "--receivers", "20000"});
  REQUIRE(tool.Wait() == 0);
  const std::string said = tool.Said();
  CAPTURE(said);
  CHECK(Has(said, "policy: 3.15 MB in 3 tensors"));
  CHECK(Has(said, "6.29 MB  two buffers"));
  CHECK(Has(said, "1.07 GB  deltas, up to delta-log"));
  CHECK(Has(said, "\n[Service]\nMemoryMax="));
  // 20,000 connections and four streams of each, which is more than the unit allows.
  CHECK(Has(said, "\nLimitNOFILE=100320\n"));

  std::ofstream(config) << "delta-lag = 1\n";
  Tool wrong(root.path(), {"limits", "sender", model.dir.string(), "--config", config.string()});
  CHECK(wrong.Wait() == 1);
  CHECK(Has(wrong.Said(), "sender.toml:1: "));
}

}  // namespace deltawire::testing::tool_test
