// What a daemon takes from its command line and its file: every option, its default, and which
// source is the stronger one. What it refuses is in options_refused_test.cc.
#include "common/config/options.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "tests/unit/config/options_rig.h"

namespace deltawire::options_test {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr const char* kSenderSample = DELTAWIRE_SAMPLE_DIR "/sender.toml";
constexpr const char* kReceiverSample = DELTAWIRE_SAMPLE_DIR "/receiver.toml";

/// The long options that --help lists, without those that only a command line can have.
std::set<std::string> OptionsInHelp(const std::string& help) {
  std::set<std::string> names;
  const std::regex option("--(\\[no-\\])?([a-z-]+)");
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    const bool declares = line.starts_with("  -");
    if (declares && std::regex_search(line, match, option)) names.insert(match[2]);
  }
  for (const char* general : {"help", "version", "config"}) CHECK(names.erase(general) == 1);
  return names;
}

std::set<std::string> KeysOf(const char* file) {
  std::set<std::string> keys;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t equals = line.find(" = ");
    if (equals != std::string::npos && line[0] != '#') keys.insert(line.substr(0, equals));
  }
  return keys;
}

/// The keys of a sample file without a sentence on when to change them.
std::set<std::string> KeysWithoutAdvice(const char* file) {
  std::set<std::string> keys;
  std::ifstream in(file);
  bool advised = false;
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) advised = false;
    advised = advised || line.find("Change it ") != std::string::npos ||
              line.find("Change it,") != std::string::npos || line.starts_with("# Change them ");
    const size_t equals = line.find(" = ");
    if (equals != std::string::npos && line[0] != '#' && !advised) {
      keys.insert(line.substr(0, equals));
    }
  }
  return keys;
}

TEST_CASE("without arguments every option has its default") {
  const auto sender = Sender({});
  REQUIRE(sender.run);
  CHECK((sender.options == SenderOptions{}));
  const auto receiver = Receiver({"--model", "m"});
  REQUIRE(receiver.run);
  ReceiverOptions want;
  want.models = {{"m", ""}};
  CHECK((receiver.options == want));
}

TEST_CASE("the bulk port is at the host of the control port unless it is said") {
  const auto bulk_of = [](std::vector<const char*> args) {
    const auto sender = Sender(std::move(args));
    CAPTURE(sender.text);
    REQUIRE(sender.run);
    return sender.options.bulk;
  };
  CHECK(bulk_of({"--control-listen", "[::1]:7700"}) == Endpoint{"::1", 7701});
  CHECK(bulk_of({"--control-listen", "0.0.0.0:1", "--insecure-plaintext"}) ==
        Endpoint{"0.0.0.0", 7701});
  CHECK(bulk_of({"--control-listen", "localhost:1"}) == Endpoint{"localhost", 7701});
  CHECK(bulk_of({"--bulk-listen", ":2", "--control-listen", "127.0.0.1:1"}) ==
        Endpoint{"127.0.0.1", 2});
  const ConfigFile file("control-listen = '[::1]:1'\n");
  CHECK(bulk_of({"--config", file.path()}) == Endpoint{"::1", 7701});
  CHECK_FALSE(Receiver({"--model", "m"}).options.bulk.has_value());
  const auto relay = Receiver({"--model", "m", "--bulk-listen", ":7711"});
  REQUIRE(relay.run);
  CHECK(relay.options.bulk == Endpoint{"127.0.0.1", 7711});

  // The address that receivers dial for weights must be one that they reach.
  const std::string why =
      "--bulk-listen: receivers fetch weights from the host of --control-listen";
  CheckError(Sender({"--control-listen", "[::1]:1", "--bulk-listen", "127.0.0.1:2"}),
             {why, "([::1]:1), and 127.0.0.1:2 is another one", "--advertise-host"});
  CheckError(Receiver({"--model", "m", "--bulk-listen", "127.0.0.2:2"}), {why});
  bulk_of({"--control-listen", "[::1]:1", "--bulk-listen", "127.0.0.1:2", "--advertise-host", "a"});
  bulk_of({"--control-listen", "localhost:1", "--bulk-listen", "127.0.0.1:2"});
  const char* const open = "--insecure-plaintext";
  bulk_of({"--control-listen", "10.0.0.1:1", "--bulk-listen", "0.0.0.0:2", open});
  bulk_of({"--control-listen", "[::1]:1", "--bulk-listen", "[::]:2", open});
  bulk_of({"--control-listen", "0.0.0.0:1", "--bulk-listen", "10.0.0.1:2", open});
  CheckError(Sender({"--control-listen", "[::1]:1", "--bulk-listen", "0.0.0.0:2", open}), {why});
  CheckError(Sender({"--control-listen", "0.0.0.0:1", "--bulk-listen", "127.0.0.1:2", open}),
             {why});
}

TEST_CASE("a site wants one sender, and an address where a relay of it can be dialled") {
  CHECK(Sender({"--fan-out", "3"}).options.fan_out == 3);
  CHECK_FALSE(Sender({"--fan-out", "1025"}).run);
  const auto receiver = [](std::vector<const char*> more) {
    std::vector<const char*> args = {"--model", "m", "--site", "west", "--insecure-plaintext"};
    args.insert(args.end(), more.begin(), more.end());
    return Receiver(args);
  };
  CHECK(receiver({}).options.site == "west");
  CHECK(receiver({"--bulk-listen", ":7711"}).run);
  CHECK(Receiver({"--model", "m", "--site", "two words"}).text.find("visible ASCII") !=
        std::string::npos);
  const auto refused = [&](const std::vector<const char*>& more) {
    return receiver(more).text.find("--site") != std::string::npos;
  };
  CHECK(refused({"--sender", "a:1,b:1"}));
  CHECK(refused({"--sender", "a:1", "--sender", "b:1"}));
  const char* const bulk = "--bulk-listen=0.0.0.0:7711";
  CHECK(refused({"--bulk-listen=:7711", "--control-listen", "127.0.0.1:0"}));
  CHECK(refused({bulk, "--control-listen", "0.0.0.0:7710"}));
  CHECK(receiver({bulk, "--control-listen", "0.0.0.0:7710", "--advertise-host", "a"}).run);
  CHECK(receiver({"--control-listen", "127.0.0.1:0"}).run);
}

TEST_CASE("the sample files name every option and hold exactly the defaults") {
  const auto sender = Sender({"--config", kSenderSample});
  CAPTURE(sender.text);
  REQUIRE(sender.run);
  CHECK((sender.options == SenderOptions{}));
  CHECK(KeysOf(kSenderSample) == OptionsInHelp(Sender({"--help"}).text));

  const auto receiver = Receiver({"--config", kReceiverSample, "--model", "m"});
  CAPTURE(receiver.text);
  REQUIRE(receiver.run);
  ReceiverOptions want;
  want.models = {{"m", ""}};
  CHECK((receiver.options == want));
  CHECK(KeysOf(kReceiverSample) == OptionsInHelp(Receiver({"--help"}).text));

  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(DELTAWIRE_SAMPLE_DIR)) {
    files += entry.path().extension() == ".toml";
  }
  // One for each daemon, and a fleet's, which the test of JSON outputs reads. A further one needs a
  // test, too.
  CHECK(files == 3);
}

TEST_CASE("the options are few, and the sample files say of each when to change it") {
  CHECK(KeysWithoutAdvice(kSenderSample) == std::set<std::string>{});
  CHECK(KeysWithoutAdvice(kReceiverSample) == std::set<std::string>{});
  std::set<std::string> names = KeysOf(kSenderSample);
  names.merge(KeysOf(kReceiverSample));
  CHECK(names.size() <= 40);
}

TEST_CASE("engines are named with their kind, and each once") {
  const auto parsed = Receiver({"--model",
                                "m",
                                "--engine",
                                "vllm=http://127.0.0.1:8000/",
                                "--engine=sglang-reload=http://[::1]:30000/a/b",
                                "--engine",
                                "m:http=http://:9/hook?x=1",
                                "--engine",
                                "exec=/bin/reload --fast  two",
                                "--engine",
                                "disk-delta=/mnt/versions overwrite keep=7",
                                "--engine",
                                "m:disk-delta=/mnt/m xor",
                                "--engine",
                                "vllm=http://127.0.0.1:8001  second_instance loader_tensors",
                                "--engine",
                                "sglang=http://127.0.0.1:8002/x plans",
                                "--engine",
                                "vllm-reload=https://node:8000 pause=wait token_file=/k ca_file=/c",
                                "--engine",
                                "sglang=http://127.0.0.1:8003 pause=in_place token_file=/k plans",
                                "--engine",
                                "m:http=https://node:1/hook",
                                "--engine-failure",
                                "rollback",
                                "--engine-timeout-ms",
                                "500"});
  CAPTURE(parsed.text);
  REQUIRE(parsed.run);
  const std::vector<EngineOptions> want = {
      {"", EngineKind::kVllm, {"127.0.0.1", 8000}, "", {}},
      {"", EngineKind::kSglangReload, {"::1", 30000}, "/a/b", {}},
      {"m", EngineKind::kHttp, {"127.0.0.1", 9}, "/hook?x=1", {}},
      {"", EngineKind::kExec, {}, "", {"/bin/reload", "--fast", "two"}},
      {"", EngineKind::kDiskDelta, {}, "", {}, "/mnt/versions", true, 7},
      {"m", EngineKind::kDiskDelta, {}, "", {}, "/mnt/m", false, 64},
      {.kind = EngineKind::kVllm,
       .address = {"127.0.0.1", 8001},
       .loader_tensors = true,
       .second_instance = true},
      {.kind = EngineKind::kSglang, .address = {"127.0.0.1", 8002}, .path = "/x", .plans = true},
      {.kind = EngineKind::kVllmReload,
       .address = {"node", 8000},
       .tls = true,
       .token_file = "/k",
       .ca_file = "/c",
       .pause = "wait"},
      {.kind = EngineKind::kSglang,
       .address = {"127.0.0.1", 8003},
       .plans = true,
       .token_file = "/k",
       .pause = "in_place"},
      {.model = "m", .address = {"node", 1}, .path = "/hook", .tls = true}};
  CHECK(parsed.options.engines == want);
  CHECK(parsed.options.engine_failure == EngineFailure::kRollback);
  CHECK(parsed.options.engine_timeout == milliseconds(500));
  CHECK(NameOf(want[0]) == "127.0.0.1:8000");
  CHECK(NameOf(want[1]) == "[::1]:30000/a/b");
  CHECK(NameOf(want[2]) == "127.0.0.1:9/hook?x=1");
  CHECK(NameOf(want[3]) == "/bin/reload --fast two");
  CHECK(NameOf(want[4]) == "/mnt/versions");
  CHECK(NameOf(want[6]) == "127.0.0.1:8001");
  CHECK(NameOf(want[8]) == "node:8000");
  CHECK(PauseOf(want[0]) == "keep");
  CHECK(PauseOf(want[1]) == "retract");
  CHECK(PauseOf(want[8]) == "wait");

  CHECK(Receiver({"--model", "m", "--engine", ""}).options.engines.empty());
  const ConfigFile file("model = 'm'\nengine = ['vllm=http://a:1', 'exec=/b c']\n");
  const auto two = Receiver({"--config", file.path()});
  CAPTURE(two.text);
  REQUIRE(two.run);
  CHECK(two.options.engines.size() == 2);

  const std::pair<const char*, const char*> bad[] = {
      {"vllm", "is not KIND=TARGET"},
      {"tgi=http://a:1", "vllm, vllm-reload, sglang, sglang-reload, http, exec, disk-delta"},
      {"disk-delta=versions", "absolute path of a directory"},
      {"disk-delta=/v keep=0", "keep= wants 1 to 10000"},
      {"disk-delta=/v keep=3x", "keep= wants 1 to 10000"},
      {"disk-delta=/v zip", "is none of xor, overwrite and keep=N"},
      {"vllm=127.0.0.1:8000", "is neither http://HOST:PORT nor https://HOST:PORT"},
      {"vllm=http://a:1 ca_file=/c", "without https://"},
      {"vllm=https://a:1 ca_file=c", "by its absolute path"},
      {"vllm=https://a:1 token_file=", "by its absolute path"},
      {"vllm=http://a:1 token_file=/k", "--insecure-plaintext"},
      {"vllm=http://a:1 pause=retract", "pause=retract is none of vLLM's: abort, wait, keep"},
      {"sglang=http://a:1 pause=keep", "none of SGLang's: abort, in_place, retract"},
      {"http=http://a:1/x pause=abort", "is none of token_file=, ca_file=, which"},
      {"vllm=http://a", "the port is missing"},
      {"vllm=http://a:0", "port 0 cannot be dialled"},
      {"http=http://a:1/x y", "is none of token_file=, ca_file=, which"},
      {"http=http://a:1/\x7f", "that are not visible ASCII"},
      {"vllm-reload=http://a:1/x plans", "is none of token_file=, ca_file=, pause=, which"},
      {"vllm=http://a:1/x fast", "pause=, loader_tensors, plans, second_instance, which"},
      {"sglang=http://a:1 second_instance", "pause=, loader_tensors, plans, which"},
      {"exec=reload", "absolute path"},
      {"exec=", "absolute path"},
      {"a/b:vllm=http://a:1", "is not a model name"},
      {"other:vllm=http://a:1", "there is no model other"}};
  for (const auto& [text, why] : bad) {
    CAPTURE(text);
    CheckError(Receiver({"--model", "m", "--engine", text}), {"--engine: ", why});
  }
  CheckError(Receiver({"--model", "m", "--engine=vllm=http://a:1", "--engine=m:sglang=http://a:1"}),
             {"--engine: ", "a:1 is named twice"});
  CheckError(Receiver({"--model", "m", "--engine=exec=/bin/r a", "--engine=exec=/bin/r  a"}),
             {"--engine: ", "/bin/r a is named twice"});
  CHECK(Receiver({"--model", "m", "--engine=vllm=http://a:1 token_file=/k", "--insecure-plaintext"})
            .run);
  CHECK(Receiver({"--model", "m", "--engine=vllm=http://a:1/x", "--engine=vllm=http://a:1/y",
                  "--engine=exec=/bin/r a", "--engine=exec=/bin/r b"})
            .run);
  CheckError(Receiver({"--model", "m", "--model", "n", "--engine=vllm=http://a:1"}),
             {"--engine: ", "MODEL:KIND=TARGET"});
  CHECK(Receiver({"--model", "m", "--model", "n", "--engine=m:vllm=http://a:1",
                  "--engine=n:http=http://a:1"})
            .run);
}

TEST_CASE("groups are named with their receivers, and a receiver is in one of them") {
  const auto parsed = Sender({"--group", "rollout=node-a:7710,node-b:7710",
                              "--group=policy:canary=c", "--group", "critic:canary=c",
                              "--group-commits", "--group-timeout-ms=500", "--group-skip-absent"});
  CAPTURE(parsed.text);
  REQUIRE(parsed.run);
  CHECK(parsed.options.groups ==
        std::vector<GroupOptions>{{"", "rollout", {"node-a:7710", "node-b:7710"}},
                                  {"policy", "canary", {"c"}},
                                  {"critic", "canary", {"c"}}});
  CHECK(parsed.options.group_commits);
  CHECK(parsed.options.group_skip_absent);
  CHECK(parsed.options.group_timeout == milliseconds(500));
  CHECK(Sender({"--group", ""}).options.groups.empty());
  const ConfigFile file("group = ['g=a,b', 'h=c']\n");
  CHECK(Sender({"--config", file.path()}).options.groups.size() == 2);
  const std::pair<const char*, const char*> bad[] = {{"g", "is not [MODEL:]NAME=ID[,ID...]"},
                                                     {"g=", "the receiver id \"\""},
                                                     {"g=a,,b", "the receiver id \"\""},
                                                     {"g=a b", "visible ASCII"},
                                                     {"g=a,a", "names a twice"},
                                                     {"=a", "is not a group name"},
                                                     {"a/b:g=a", "is not a model name"},
                                                     {"g/h=a", "is not a group name"}};
  for (const auto& [text, why] : bad) {
    CAPTURE(text);
    CheckError(Sender({"--group", text}), {"--group: ", why});
  }
  CheckError(Sender({"--group=g=a", "--group=m:g=b"}), {"--group: g is named twice"});
  CheckError(Sender({"--group=g=a", "--group=m:h=b,a"}), {"--group: a is in both g and h"});
}

TEST_CASE("several senders are the agents of one trainer, each named once") {
  const auto two = Receiver({"--model", "m", "--sender", "a:1", "--sender=[::1]:2"});
  CAPTURE(two.text);
  REQUIRE(two.run);
  CHECK(two.options.senders == std::vector<std::string>{"a:1", "[::1]:2"});
  const ConfigFile file("model = 'm'\nsender = ['a:1', 'b:2', 'c:3']\n");
  const auto three = Receiver({"--config", file.path()});
  CAPTURE(three.text);
  REQUIRE(three.run);
  CHECK(three.options.senders == std::vector<std::string>{"a:1", "b:2", "c:3"});
  const ConfigFile one("model = 'm'\nsender = 'a:1'\n");
  CHECK(Receiver({"--config", one.path()}).options.senders == std::vector<std::string>{"a:1"});
  CheckError(Receiver({"--model", "m", "--sender", "a:1", "--sender", "a:1"}),
             {"--sender", "a:1 is named twice"});
  CheckError(Receiver({"--model", "m", "--sender", "a:1", "--sender", "b:0"}), {"port 0"});
  const auto ordered = Receiver({"--model", "m", "--sender", "r:1,[::1]:2", "--sender", "b:3"});
  CAPTURE(ordered.text);
  REQUIRE(ordered.run);
  CHECK(ordered.options.senders == std::vector<std::string>{"r:1,[::1]:2", "b:3"});
  CHECK(Alternatives(ordered.options.senders[0]) == std::vector<std::string>{"r:1", "[::1]:2"});
  CheckError(Receiver({"--model", "m", "--sender", "a:1,b:2", "--sender", "b:2"}),
             {"b:2 is named twice"});
  CheckError(Receiver({"--model", "m", "--sender", "a:1,"}), {"--sender"});
  CheckError(Receiver({"--model", "m", "--bulk-listen", "10.0.0.1:7711"}), {"--bulk-listen"});
}

TEST_CASE("every sender option can be set on the command line and in the file alike") {
  SenderOptions want;
  want.data_dir = "/d";
  want.file_group = "engines";
  want.control = {"127.0.0.2", 1};
  want.bulk = {"::1", 2};
  want.advertise_host = "node";
  want.delta_log_bytes = 3 << 20;
  want.rate_limits = {.all = 5'000'000, .per_site = 2048, .per_receiver = 1024};
  want.offload_timeout = milliseconds(7);
  want.stream_timeout = milliseconds(5000);
  want.threads = 6;
  want.early = Early::kOff;
  want.codec = kernels::Codec::kTight;
  want.gpu = GpuUse::kHostStaged;
  want.scrub_bytes_per_s = 9000;
  want.insecure_plaintext = true;
  want.credentials = "/c.toml";
  want.principals = "/p.toml";
  want.insecure_metrics = true;
  want.allow_code_files = true;
  want.metrics = "0.0.0.0:9";
  want.log_level = "debug";
  const auto from_args = Sender({"--data-dir=/d",
                                 "--file-group=engines",
                                 "--control-listen=127.0.0.2:1",
                                 "--bulk-listen=[::1]:2",
                                 "--advertise-host=node",
                                 "--delta-log=3MiB",
                                 "--rate-limit=5MB",
                                 "--rate-limit=site:2KiB",
                                 "--rate-limit=receiver:1KiB",
                                 "--stream-timeout-ms=5000",
                                 "--threads=6",
                                 "--early=off",
                                 "--insecure-plaintext",
                                 "--credentials=/c.toml",
                                 "--principals=/p.toml",
                                 "--allow-code-files",
                                 "--insecure-metrics",
                                 "--metrics-listen=0.0.0.0:9",
                                 "--log-level=debug",
                                 "--codec=tight",
                                 "--gpu=host-staged",
                                 "--scrub-bytes-per-s=9kB",
                                 "--offload-timeout-ms=7"});
  CAPTURE(from_args.text);
  REQUIRE(from_args.run);
  CHECK((from_args.options == want));
  const ConfigFile file(
      "data-dir = '/d'\nfile-group = 'engines'\ncontrol-listen = "
      "'127.0.0.2:1'\n"
      "bulk-listen = '[::1]:2'\nadvertise-host = 'node'\ndelta-log = 3145728\n"
      "rate-limit = ['5MB', 'site:2048', 'receiver:1KiB']\n"
      "stream-timeout-ms = '5000'\nthreads = 6\nearly = 'off'\n"
      "insecure-plaintext = true\ncredentials = '/c.toml'\nprincipals = '/p.toml'\n"
      "insecure-metrics = true\nallow-code-files = true\nmetrics-listen = '0.0.0.0:9'\nlog-level = "
      "'debug'\n"
      "gpu = 'host-staged'\ncodec = 'tight'\nscrub-bytes-per-s = '9kB'\n"
      "offload-timeout-ms = 7\n");
  const auto from_file = Sender({"--config", file.path()});
  CAPTURE(from_file.text);
  REQUIRE(from_file.run);
  CHECK((from_file.options == want));
}

TEST_CASE("every receiver option can be set on the command line and in the file alike") {
  ReceiverOptions want;
  want.data_dir = "/d";
  want.file_group = "engines";
  want.senders = {"node:1"};
  want.models = {{"a", ""}, {"b", "/x=y", "/base=1"}};
  want.receiver_id = "me:1";
  want.control = {"localhost", 2};
  want.bulk = Endpoint{"127.0.0.1", 3};
  want.advertise_host = "relay";
  want.delta_log_bytes = 4000;
  want.rate_limits = {.per_site = 7000, .per_receiver = 6000};
  want.streams = 64;
  want.congestion_control = "cubic";
  want.follow = false;
  want.staging_bytes = 1000;
  want.delta_file_bytes = 3000;
  want.buffers = 2;
  want.on_busy_reader = OnBusyReader::kOverwrite;
  want.scrub_bytes_per_s = 0;
  want.stream_timeout = milliseconds(5000);
  want.threads = 6;
  want.insecure_plaintext = true;
  want.credentials = "/c.toml";
  want.principals = "/p.toml";
  want.insecure_metrics = true;
  want.allow_code_files = true;
  want.metrics = ":9";
  want.log_level = "off";
  const auto from_args = Receiver({"--data-dir=/d",
                                   "--file-group=engines",
                                   "--sender=node:1",
                                   "--model=a",
                                   "--model",
                                   "b=/x=y start-from=/base=1",
                                   "--receiver-id=me:1",
                                   "--control-listen=localhost:2",
                                   "--bulk-listen=:3",
                                   "--advertise-host=relay",
                                   "--delta-log=4kB",
                                   "--rate-limit=site:7kB",
                                   "--rate-limit=receiver:6kB",
                                   "--streams=64",
                                   "--congestion-control=cubic",
                                   "--no-follow",
                                   "--staging=1kB",
                                   "--stream-timeout-ms=5000",
                                   "--threads=6",
                                   "--insecure-plaintext",
                                   "--credentials=/c.toml",
                                   "--principals=/p.toml",
                                   "--allow-code-files",
                                   "--insecure-metrics",
                                   "--metrics-listen=:9",
                                   "--log-level=off",
                                   "--delta-files=3kB",
                                   "--scrub-bytes-per-s=0",
                                   "--buffers=2",
                                   "--on-busy-reader=unsafe-overwrite"});
  CAPTURE(from_args.text);
  REQUIRE(from_args.run);
  CHECK((from_args.options == want));
  const ConfigFile file(
      "data-dir = '/d'\nfile-group = 'engines'\nsender = 'node:1'\nmodel = ['a', "
      "'b=/x=y start-from=/base=1']\nreceiver-id = 'me:1'\n"
      "control-listen = 'localhost:2'\nbulk-listen = ':3'\n"
      "advertise-host = 'relay'\ndelta-log = 4000\nrate-limit = ['receiver:6000', 'site:7kB']\n"
      "streams = "
      "64\ncongestion-control = 'cubic'\n"
      "follow = false\nstaging = '1kB'\n"
      "stream-timeout-ms = 5000\nthreads = 6\ninsecure-plaintext = true\n"
      "credentials = '/c.toml'\nprincipals = '/p.toml'\nallow-code-files = true\n"
      "insecure-metrics = true\n"
      "metrics-listen = ':9'\nlog-level = 'off'\nscrub-bytes-per-s = 0\n"
      "delta-files = 3000\nbuffers = '2'\non-busy-reader = "
      "'unsafe-overwrite'\n");
  const auto from_file = Receiver({"--config", file.path()});
  CAPTURE(from_file.text);
  REQUIRE(from_file.run);
  CHECK((from_file.options == want));
}

TEST_CASE("the command line is stronger than the file, lists included") {
  const ConfigFile file("streams = 8\nmodel = [\"a\", \"b\"]\nfollow = false\nlog-level = 'off'\n");
  const auto parsed = Receiver({"--streams=2", "--config", file.path(), "--model=c", "--follow"});
  REQUIRE(parsed.run);
  CHECK(parsed.options.streams == 2);
  CHECK(parsed.options.models == std::vector<ReceiverModelOptions>{{"c", ""}});
  CHECK(parsed.options.follow);
  CHECK(parsed.options.log_level == "off");
  const ConfigFile one("model = \"only\"\n");
  CHECK(Receiver({"--config", one.path()}).options.models ==
        std::vector<ReceiverModelOptions>{{"only", ""}});
}

TEST_CASE("help and version are texts with exit code 0") {
  const auto help = Sender({"--help"});
  CHECK_FALSE(help.run);
  CHECK(help.exit_code == 0);
  for (const char* part : {"deltawire-sender", "Files:", "Network:", "Publishing:", "Process:",
                           "--[no-]group-commits", "--delta-log SIZE [2GiB]",
                           "--control-listen HOST:PORT [127.0.0.1:7700]", "--config FILE"}) {
    CAPTURE(part, help.text);
    CHECK(help.text.find(part) != std::string::npos);
  }
  const auto version = Receiver({"--version"});
  CHECK_FALSE(version.run);
  CHECK(version.exit_code == 0);
  CHECK(version.text == "deltawire " DELTAWIRE_EXPECTED_VERSION "\n");
}

TEST_CASE("values, arrays over several lines, comments and line ends are read") {
  const ConfigFile file(
      "# first = 1\n\n  data-dir='/a b, c=[d]' # trailing\r\n\tstreams\t=\t7\r\n"
      "model = [ # some\n  \"a\", # one ]\n\n  'b=[x]',\n]\nfollow=false#x\nreceiver-id = "
      "\"it's\"");
  const auto parsed = Receiver({"--config", file.path()});
  CAPTURE(parsed.text);
  REQUIRE(parsed.run);
  CHECK(parsed.options.data_dir == "/a b, c=[d]");
  CHECK(parsed.options.streams == 7);
  CHECK(parsed.options.models == std::vector<ReceiverModelOptions>{{"a", ""}, {"b", "[x]"}});
  CHECK_FALSE(parsed.options.follow);
  CHECK(parsed.options.receiver_id == "it's");
}

TEST_CASE("an empty value turns off what can be off, on the command line and in the file") {
  const ConfigFile file("metrics-listen = \":9\"\nadvertise-host = \"h\"\nfile-group = \"g\"\n");
  const auto args = Sender({"--config", file.path(), "--metrics-listen", "", "--advertise-host", "",
                            "--file-group", ""});
  CAPTURE(args.text);
  REQUIRE(args.run);
  CHECK((args.options == SenderOptions{}));
}

TEST_CASE("sizes take decimal and binary units") {
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
                    {"1.5GiB", 1610612736},
                    {"0.1kB", 100},
                    {"1.3 KiB", 1331},
                    {"2.5m", 2500000},
                    {"1024TiB", uint64_t{1} << 50}};
  for (const auto& c : good) {
    CAPTURE(c.text);
    const auto parsed = Sender({"--delta-log", c.text});
    REQUIRE(parsed.run);
    CHECK(parsed.options.delta_log_bytes == c.bytes);
  }
  for (const std::string text :
       {"", "-1", "1.GiB", ".5GiB", "1.5.1GiB", "2GiBx", "x", "18446744073709551616", "16777216TiB",
        "1025TiB", "-1GiB", "2GiB 3", "0.5", "0.0004kB"}) {
    CAPTURE(text);
    CheckError(Sender({"--delta-log", text.c_str()}), {"--delta-log"});
  }
}

}  // namespace
}  // namespace deltawire::options_test
