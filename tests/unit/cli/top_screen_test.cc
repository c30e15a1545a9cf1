#include "cli/top_screen.h"

#include <catch2/catch.hpp>

#include "cli/output.h"
#include "proto/convert.h"

namespace deltawire::cli::top_screen_test {
namespace {

Identity At(uint64_t version, uint64_t root = 0) {
  return {
      .lineage = {1, 1}, .id = {1, version}, .root = root == 0 ? version * 10 : root, .attempt = 0};
}

void AddReceiver(SenderAnswer& sender, const std::string& name, const Identity& held,
                 double transfer, double apply, const std::string& message = "") {
  v1::ReceiverInfo& r = *sender.attached.add_receivers();
  r.set_receiver_id(name);
  r.set_model("policy");
  ToProto(held, r.mutable_committed());
  r.set_phase("idle");
  r.set_message(message);
  v1::PullStats& pull = *r.mutable_last_pull();
  pull.set_payload_bytes(8'000'000);
  pull.set_transfer_seconds(transfer);
  pull.set_apply_seconds(apply);
  pull.set_seconds(transfer + apply);
}

// A sender of "policy" at version 7 that has sent `sent` bytes, at `seconds` of a steady clock.
TopLook LookAt(double seconds, uint64_t sent) {
  TopLook look;
  look.at +=
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  v1::SenderStatusResponse status;
  v1::SenderModelStatus& m = *status.add_models();
  m.set_model("policy");
  m.set_bytes_sent(sent);
  ToProto(At(7), m.mutable_newest()->mutable_id());
  m.mutable_newest()->set_publish_seconds(0.015);
  look.senders.push_back({"host-a:7700", std::move(status), {}});
  return look;
}

std::string Text(const std::vector<TopLine>& lines) {
  std::string text;
  for (const TopLine& line : lines) text += line.text + "\n";
  return text;
}

std::vector<TopLine> Draw(const TopLook& now, const TopLook* before = nullptr) {
  TopView view;
  return TopScreen(now, before, view, 24, 80);
}

std::vector<std::string> Order(const TopLook& look, TopView view, size_t rows = 24) {
  std::vector<std::string> names;
  for (const TopLine& line : TopScreen(look, nullptr, view, rows, 80)) {
    if (line.text.starts_with("node-")) names.push_back(line.text.substr(0, line.text.find(' ')));
  }
  return names;
}

TEST_CASE("top: a picture has as many lines as the terminal and fits its columns") {
  TopLook look = LookAt(0, 0);
  for (int i = 0; i < 40; ++i) {
    AddReceiver(look.senders[0], fmt::format("node-{:02}-ü-with-a-very-long-name", i), At(7), 0.08,
                0.01, "the sender at host-a:7700 does not answer: connection refused, and so on");
  }
  look.receivers.push_back({"host-b:7710", absl::UnavailableError("receiver host-b is away")});
  for (const size_t rows : {0, 1, 2, 5, 24, 60}) {
    for (const size_t columns : {1, 20, 80, 200}) {
      CAPTURE(rows, columns);
      for (const bool help : {false, true}) {
        TopView view{.help = help};
        const auto lines = TopScreen(look, nullptr, view, rows, columns);
        CHECK(lines.size() == rows);
        for (const TopLine& line : lines) CHECK(DisplayWidth(line.text) <= columns);
      }
    }
  }
}

TEST_CASE("top: a wide terminal shows more columns than one of 80") {
  TopLook look = LookAt(0, 0);
  AddReceiver(look.senders[0], "node-with-a-name-of-more-than-24-letters", At(7), 0.08, 0.01);
  look.senders[0].attached.mutable_receivers(0)->set_peer("ipv4:10.0.0.2:3333");
  const auto text = [&](size_t columns) {
    TopView view;
    return Text(TopScreen(look, nullptr, view, 24, columns));
  };
  for (const char* words : {"FROM", "10.0.0.2:3333", "LINK", "ATTACHED", "ROOT", "SENT",
                            "node-with-a-name-of-more-than-24-letters"}) {
    CAPTURE(words);
    CHECK(text(80).find(words) == std::string::npos);
    CHECK(text(160).find(words) != std::string::npos);
  }
  CHECK(text(80).find("p freeze picture") != std::string::npos);
  CHECK(text(80).find("stop") == std::string::npos);
}

TEST_CASE("top: rates are the growth between two looks") {
  const TopLook before = LookAt(10, 1'000'000), now = LookAt(12, 5'000'000);
  CHECK(Text(Draw(now, &before)).find("2.00 MB/s") != std::string::npos);
  CHECK(Text(Draw(now)).find("B/s") == std::string::npos);
  // A sender that was started again counts from zero, and its rate is not known.
  CHECK(Text(Draw(before, &now)).find("B/s") == std::string::npos);
}

TEST_CASE("top: the slowest receiver of the newest version names the critical stage") {
  TopLook look = LookAt(0, 0);
  v1::SenderModelStatus& m = *look.senders[0].status->mutable_models(0);
  CHECK(StagesText(m, look.senders[0].attached).empty());
  AddReceiver(look.senders[0], "node-behind", At(6), 9, 9);
  CHECK(StagesText(m, look.senders[0].attached).empty());
  AddReceiver(look.senders[0], "node-fast", At(7), 0.03, 0.04);
  AddReceiver(look.senders[0], "node-slow", At(7), 0.08, 0.01);
  CHECK(StagesText(m, look.senders[0].attached) ==
        "publish 15.0 ms, transfer 80.0 ms (most), apply+commit 10.0 ms");
  m.mutable_newest()->set_publish_seconds(0.2);
  CHECK(StagesText(m, look.senders[0].attached) ==
        "publish 200 ms (most), transfer 80.0 ms, apply+commit 10.0 ms");
}

TEST_CASE("top: receivers are sorted by trouble, by their last pull, or by name") {
  TopLook look = LookAt(0, 0);
  AddReceiver(look.senders[0], "node-c", At(7), 0.01, 0);
  AddReceiver(look.senders[0], "node-b", At(5), 0.02, 0);
  AddReceiver(look.senders[0], "node-d", At(7, 71), 0.03, 0);
  AddReceiver(look.senders[0], "node-a", At(6), 0.04, 0);
  using Names = std::vector<std::string>;
  CHECK(Order(look, {}) == Names{"node-d", "node-b", "node-a", "node-c"});
  CHECK(Order(look, {.order = TopOrder::kSlowest}) ==
        Names{"node-a", "node-d", "node-b", "node-c"});
  CHECK(Order(look, {.order = TopOrder::kName}) == Names{"node-a", "node-b", "node-c", "node-d"});
  const auto lines = Draw(look);
  for (const TopLine& line : lines) {
    if (!line.text.starts_with("node-")) continue;
    CHECK((line.style == TopStyle::kWarning) == line.text.starts_with("node-d"));
  }
}

TEST_CASE("top: scrolling ends at the last receiver") {
  TopLook look = LookAt(0, 0);
  for (int i = 0; i < 40; ++i) {
    AddReceiver(look.senders[0], fmt::format("node-{:02}", i), At(7), 0.01, 0);
  }
  const auto first = Order(look, {.order = TopOrder::kName});
  REQUIRE(first.size() < 40);
  CHECK(first.front() == "node-00");
  CHECK(Order(look, {.order = TopOrder::kName, .scroll = 3}).front() == "node-03");
  const auto last = Order(look, {.order = TopOrder::kName, .scroll = 1000});
  CHECK(last.back() == "node-39");
  CHECK(last.size() == first.size());
  // However far it went beyond the end, one key up shows one receiver more.
  TopView view{.order = TopOrder::kName, .scroll = 1000};
  TopScreen(look, nullptr, view, 24, 80);
  CHECK(view.scroll == 40 - last.size());
}

TEST_CASE("top: the tree shows who follows whom, and who is told otherwise") {
  TopLook look = LookAt(0, 0);
  const auto add = [&](const std::string& id, const std::string& follows,
                       const std::string& assigned) {
    AddReceiver(look.senders[0], id, At(7), 0.08, 0.01);
    v1::ReceiverInfo& r = *look.senders[0].attached.mutable_receivers()->rbegin();
    r.set_site("west");
    r.set_follows(follows);
    r.set_assigned(assigned);
  };
  add("node-d", "node-b", "node-b");
  add("node-c", "", "node-a");
  add("node-b", "node-a", "node-a");
  add("node-a", "", "");
  add("node-e", "node-f", "node-f");  // told of each other for a moment
  add("node-f", "node-e", "node-a");
  AddReceiver(look.senders[0], "node-plain", At(7), 0.08, 0.01);
  TopView view{.order = TopOrder::kTree};
  std::vector<std::string> rows;
  for (const TopLine& line : TopScreen(look, nullptr, view, 24, 100)) {
    if (line.text.find("node-") < 8) rows.push_back(line.text);
  }
  REQUIRE(rows.size() == 7);
  const char* const names[] = {"node-plain ", "node-a ", "  node-b ", "    node-d ",
                               "node-c ",     "node-e ", "  node-f "};
  for (size_t i = 0; i < rows.size(); ++i) CHECK(rows[i].starts_with(names[i]));
  CHECK(rows[0].ends_with("-     -"));
  CHECK(rows[1].ends_with("west  sender"));
  CHECK(rows[2].ends_with("west  node-a"));
  CHECK(rows[4].ends_with("west  sender (told node-a)"));
}

TEST_CASE("top: failures and daemons that do not answer stand out") {
  TopLook look = LookAt(0, 0);
  AddReceiver(look.senders[0], "node-a", At(7), 0.01, 0, "no space left on /dev/shm");
  look.receivers.push_back({"host-b:7710", absl::UnavailableError("receiver host-b is away")});
  size_t found = 0;
  for (const TopLine& line : Draw(look)) {
    if (line.text != "node-a: no space left on /dev/shm" && line.text != "receiver host-b is away")
      continue;
    CHECK(line.style == TopStyle::kWarning);
    ++found;
  }
  CHECK(found == 2);
}

TEST_CASE("top: an engine's version is compared with what its receiver has committed") {
  TopLook look = LookAt(0, 0);
  v1::ReceiverStatusResponse status;
  v1::ReceiverModelStatus& m = *status.add_models();
  m.set_model("policy");
  ToProto(At(7), m.mutable_committed());
  v1::EngineStatus& e = *m.add_engines();
  e.set_name("localhost:8000");
  e.set_kind("vllm");
  e.set_state("serving");
  ToProto(At(4), e.mutable_served());
  look.receivers.push_back({"host-b:7710", std::move(status)});
  const std::string text = Text(Draw(look));
  CHECK(text.find("localhost:8000  vllm  serving       4       3") != std::string::npos);
}

}  // namespace
}  // namespace deltawire::cli::top_screen_test
