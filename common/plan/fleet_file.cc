// The reader of a fleet's TOML file. docs/scaling.md explains the keys.
#include <toml++/toml.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "common/base/similar_word.h"
#include "common/plan/fleet.h"
#include "common/plan/quantity.h"

namespace deltawire::plan {
namespace {

constexpr double kMost = 1e18;

/// Reads the keys of one table, keeps the first error, and records the keys that it was asked for.
class Keys {
 public:
  Keys(const toml::table& table, std::string where, const std::string& file, Status* status)
      : table_(table), where_(std::move(where)), file_(file), status_(status) {}

  void Fail(const toml::node& node, std::string_view what) const {
    if (!status_->ok()) return;
    *status_ =
        Errorf(StatusCode::kInvalidArgument, "{}:{}: {}", file_, node.source().begin.line, what);
  }
  void FailTable(std::string_view what) const { Fail(table_, what); }

  /// Fails if the table has `key`, which has no meaning here.
  void Refuse(std::string_view key, std::string_view why) const {
    const toml::node* node = table_.get(key);
    if (node != nullptr) Fail(*node, fmt::format("{}{}: {}; leave it out", where_, key, why));
  }

  const toml::node* Find(std::string_view key) {
    known_.emplace(key);
    return table_.get(key);
  }
  using Parse = StatusOr<double> (*)(std::string_view);
  bool Quantity(std::string_view key, Parse parse, double* to, double least = 0,
                double most = kMost) {
    const toml::node* node = Find(key);
    if (node == nullptr) return false;
    StatusOr<double> value = absl::InvalidArgumentError("expected a number, or a text with a unit");
    if (node->is_number()) value = *node->value<double>();
    if (const auto* text = node->as_string()) value = parse(text->get());
    if (!value.ok()) {
      Fail(*node, fmt::format("{}{}: {}", where_, key, MessageOf(value.status())));
    } else if (!(*value >= least) || *value > most) {
      Fail(*node, fmt::format("{}{}: {} is not within {} .. {}", where_, key, *value, least, most));
    } else {
      *to = *value;
    }
    return true;
  }
  void Optional(std::string_view key, Parse parse, std::optional<double>* to, double most) {
    double value = 0;
    if (Quantity(key, parse, &value, 0, most)) *to = value;
  }
  template <typename T>
  void Integer(std::string_view key, T* to, int64_t least, int64_t most) {
    const toml::node* node = Find(key);
    if (node == nullptr) return;
    const auto* number = node->as_integer();
    if (number == nullptr || number->get() < least || number->get() > most) {
      Fail(*node,
           fmt::format("{}{} wants a whole number within {} .. {}", where_, key, least, most));
      return;
    }
    *to = static_cast<T>(number->get());
  }
  void Text(std::string_view key, std::string* to) {
    const toml::node* node = Find(key);
    if (node == nullptr) return;
    if (const auto* text = node->as_string(); text != nullptr && !text->get().empty()) {
      *to = text->get();
    } else {
      Fail(*node, fmt::format("{}{} wants a text", where_, key));
    }
  }
  void Bool(std::string_view key, bool* to) {
    const toml::node* node = Find(key);
    if (node == nullptr) return;
    if (const auto* truth = node->as_boolean()) {
      *to = truth->get();
    } else {
      Fail(*node, fmt::format("{}{} wants true or false", where_, key));
    }
  }
  /// Fails for a key that was never read, which is most likely a typing error.
  void RefuseOthers() const {
    for (const auto& [key, node] : table_) {
      if (known_.contains(key.str())) continue;
      std::string all;
      for (const std::string& one : known_) all += (all.empty() ? "" : ", ") + one;
      Fail(node, fmt::format("unknown key \"{}{}\"; the keys here are {}{}", where_, key.str(), all,
                             DidYouMean(key.str(), {known_.begin(), known_.end()})));
    }
  }

 private:
  const toml::table& table_;
  const std::string where_;
  const std::string& file_;
  Status* status_;
  std::set<std::string, std::less<>> known_;
};

class FleetReader {
 public:
  explicit FleetReader(const std::string& file) : file_(file) {}

  StatusOr<Fleet> Read(const toml::table& all) {
    Keys top = Of(all, "");
    One(top, "model", [&](Keys& in) { ReadModel(in); });
    One(top, "changes", [&](Keys& in) { ReadChanges(in); });
    Many(top, "machine", [&](Keys& in) { ReadMachine(in); });
    One(top, "trainer", [&](Keys& in) { ReadTrainer(in); });
    Many(top, "site", [&](Keys& in) { ReadSite(in); });
    One(top, "speeds", [&](Keys& in) { ReadSpeeds(in); });
    top.Bool("tls", &fleet_.tls);
    top.Quantity("link-payload", ParseShare, &fleet_.link_payload, 0.01, 1);
    top.Quantity("step", ParseSeconds, &fleet_.step_seconds);
    top.RefuseOthers();
    if (status_.ok() && fleet_.model.bytes <= 0) top.FailTable("[model] wants bytes");
    if (status_.ok() && fleet_.sites.empty()) top.FailTable("a fleet wants a [[site]]");
    DW_RETURN_IF_ERROR(status_);
    return std::move(fleet_);
  }

 private:
  Keys Of(const toml::table& table, const std::string& where) {
    return {table, where, file_, &status_};
  }

  void One(Keys& top, const std::string& key, const std::function<void(Keys&)>& read) {
    const toml::node* node = top.Find(key);
    if (node == nullptr) return;
    if (const toml::table* table = node->as_table()) {
      Keys in = Of(*table, key + ".");
      read(in);
      in.RefuseOthers();
    } else {
      top.Fail(*node, fmt::format("{} is a table: [{}]", key, key));
    }
  }

  void Many(Keys& top, const std::string& key, const std::function<void(Keys&)>& read) {
    const toml::node* node = top.Find(key);
    if (node == nullptr) return;
    const toml::array* list = node->as_array();
    for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
      const toml::table* table = list->get(i)->as_table();
      if (table == nullptr) break;
      Keys in = Of(*table, key + ".");
      read(in);
      in.RefuseOthers();
    }
    const bool tables = list != nullptr && std::ranges::all_of(*list, [](const toml::node& n) {
                          return n.is_table();
                        });
    if (!tables) top.Fail(*node, fmt::format("each {} begins with [[{}]]", key, key));
  }

  void ReadModel(Keys& in) {
    Model& m = fleet_.model;
    in.Text("name", &m.name);
    in.Quantity("bytes", ParseBytes, &m.bytes, 1, 1e15);
    in.Integer("tensors", &m.tensors, 1, 4'000'000);
    std::string dtype;
    in.Text("dtype", &dtype);
    if (dtype.empty()) return;
    if (const auto parsed = ParseDType(dtype); parsed.ok()) {
      m.dtype = *parsed;
    } else {
      in.Fail(*in.Find("dtype"), MessageOf(parsed.status()));
    }
  }

  void ReadChanges(Keys& in) {
    Changes& c = fleet_.changes;
    in.Quantity("density", ParseShare, &c.density, 0, 1);
    in.Quantity("touched", ParseShare, &c.touched, 1e-6, 1);
    if (c.density > c.touched) in.FailTable("changes.density is above changes.touched");
    std::string kind;
    in.Text("kind", &kind);
    if (const auto parsed = ParseChangeKind(kind)) {
      c.kind = *parsed;
    } else if (!kind.empty()) {
      in.Fail(*in.Find("kind"),
              fmt::format("changes.kind is fp32, grid, bf16 or random, not {}", kind));
    }
    in.Optional("difference-bits", ParseCount, &c.difference_bits, 128);
    in.Optional("tight-ratio", ParseShare, &c.tight_ratio, 2);
    in.Optional("history-ratio", ParseShare, &c.history_ratio, 2);
  }

  void ReadMachine(Keys& in) {
    Machine m;
    in.Text("name", &m.name);
    in.Integer("cores", &m.cores, 1, 4096);
    in.Quantity("memory", ParseRate, &m.memory);
    if (m.name.empty()) {
      in.FailTable("a [[machine]] wants a name");
    } else if (std::ranges::find(fleet_.machines, m.name, &Machine::name) !=
               fleet_.machines.end()) {
      in.Fail(*in.Find("name"), fmt::format("machine.name: there is a [[machine]] {} before; give "
                                            "this one another name, or make one of both",
                                            m.name));
    }
    fleet_.machines.push_back(std::move(m));
  }

  void ReadNode(Keys& in, Node& n) {
    in.Integer("cores", &n.cores, 1, 4096);
    in.Integer("threads", &n.threads, 0, 4096);
    in.Quantity("network", ParseRate, &n.network, 1);
    in.Text("machine", &n.machine);
    if (n.machine.empty()) return;
    in.Refuse("cores", fmt::format("the node has those of [[machine]] {}", n.machine));
    const auto known = std::ranges::find(fleet_.machines, n.machine, &Machine::name);
    if (known == fleet_.machines.end()) {
      in.Fail(*in.Find("machine"), fmt::format("there is no [[machine]] {}", n.machine));
    } else {
      n.cores = known->cores;
    }
  }

  void ReadServing(Keys& in, Serving& s) {
    std::string codec;
    in.Text("codec", &codec);
    for (size_t form = 1; form < kernels::kForms; ++form) {
      if (codec == kernels::kFormNames[form]) s.codec = static_cast<kernels::Codec>(form);
    }
    if (!codec.empty() && codec != "auto" && !s.codec) {
      in.Fail(*in.Find("codec"), fmt::format("there is no codec {}", codec));
    }
    in.Quantity("rate-limit", ParseRate, &s.rate_limit);
    in.Quantity("rate-limit-per-receiver", ParseRate, &s.rate_limit_per_receiver);
    in.Quantity("rate-limit-per-site", ParseRate, &s.rate_limit_per_site);
  }

  void ReadTrainer(Keys& in) {
    Trainer& t = fleet_.trainer;
    ReadNode(in, t);
    if (!t.machine.empty()) {
      in.Refuse("memory", fmt::format("the trainer has that of [[machine]] {}", t.machine));
    }
    in.Quantity("memory", ParseRate, &t.memory);
    ReadServing(in, t);
    in.Integer("nodes", &t.nodes, 1, 4096);
    in.Quantity("early-diff", ParseShare, &t.early_diff, 0, 1);
    in.Quantity("rate", ParseRate, &t.rate);
    in.Quantity("price-per-gb", ParseCount, &t.price_per_gb);
  }

  void ReadSite(Keys& in) {
    Site s;
    ReadNode(in, s);
    in.Refuse("memory", "only the trainer's diff is predicted by the bandwidth of memory");
    ReadServing(in, s);
    in.Text("name", &s.name);
    in.Text("upstream", &s.upstream);
    in.Integer("count", &s.count, 1, 100'000);
    in.Integer("receivers", &s.receivers, 1, 100'000);
    in.Integer("relays", &s.relays, 0, 100'000);
    in.Integer("fan-out", &s.fan_out, 0, 1024);
    in.Quantity("rate", ParseRate, &s.rate);
    in.Quantity("round-trip", ParseSeconds, &s.round_trip, 0, 100);
    in.Quantity("local-round-trip", ParseSeconds, &s.local_round_trip, 0, 100);
    in.Integer("streams", &s.streams, 0, 64);
    in.Quantity("window", ParseBytes, &s.window, 1024);
    in.Integer("buffers", &s.buffers, 1, 2);
    in.Quantity("staging", ParseBytes, &s.staging);
    in.Quantity("price-per-gb", ParseCount, &s.price_per_gb);
    CheckSite(in, s);
    fleet_.sites.push_back(std::move(s));
  }

  void CheckSite(Keys& in, const Site& s) {
    const auto known = [&](const std::string& name) {
      return std::ranges::find(fleet_.sites, name, &Site::name) != fleet_.sites.end();
    };
    if (s.name.empty() || s.name == "trainer" || known(s.name)) {
      in.FailTable("a [[site]] wants a name of its own");
    }
    if (s.relays > s.receivers) {
      in.Fail(*in.Find("relays"), fmt::format("site {} has {} receivers, so it cannot have {} of "
                                              "them as relays",
                                              s.name, s.receivers, s.relays));
    }
    // The planner examines a whole site for each receiver.
    constexpr uint32_t kMostAssigned = 10'000;
    if (s.fan_out > 0 && s.receivers > kMostAssigned) {
      in.Fail(*in.Find("fan-out"),
              fmt::format("site {}: a sender that assigns upstreams is predicted for at most {} "
                          "receivers of a site; make several sites of them by `count`",
                          s.name, kMostAssigned));
    }
    if (s.fan_out > 0 && s.upstream != "trainer") {
      in.Fail(*in.Find("fan-out"), fmt::format("site {}: a sender assigns upstreams to those who "
                                               "name it, so `upstream` is the trainer",
                                               s.name));
    }
    if (s.upstream != "trainer" && !known(s.upstream)) {
      in.Fail(*in.Find("upstream"),
              fmt::format("site {}: its upstream {} is neither trainer nor an earlier [[site]]",
                          s.name, s.upstream));
    }
  }

  void ReadSpeeds(Keys& in) {
    Speeds& s = fleet_.speeds;
    const std::tuple<const char*, Keys::Parse, double*> all[] = {
        {"diff", ParseRate, &s.diff_bytes_per_s},
        {"encode-changes", ParseCount, &s.encode_changes_per_s},
        {"apply", ParseRate, &s.apply_bytes_per_s},
        {"apply-changes", ParseCount, &s.apply_changes_per_s},
        {"validate-changes", ParseCount, &s.validate_changes_per_s},
        {"send", ParseRate, &s.send_bytes_per_s},
        {"receive", ParseRate, &s.receive_bytes_per_s},
        {"tls", ParseRate, &s.tls_bytes_per_s},
        {"copy", ParseRate, &s.copy_bytes_per_s},
        {"memory-core", ParseRate, &s.memory_bytes_per_s_core},
        {"frame", ParseSeconds, &s.frame_seconds},
        {"publish-chunk", ParseSeconds, &s.publish_chunk_seconds},
        {"plan-chunk", ParseSeconds, &s.plan_chunk_seconds},
        {"commit-chunk", ParseSeconds, &s.commit_chunk_seconds},
        {"publish", ParseSeconds, &s.publish_seconds},
        {"connect", ParseSeconds, &s.connect_seconds},
        {"commit", ParseSeconds, &s.commit_seconds},
    };
    for (const auto& [key, parse, to] : all) {
      // A time may be 0; a speed may not.
      in.Quantity(key, parse, to, parse == ParseSeconds ? 0 : 1);
    }
    for (const Coder& coder : Coders()) ReadCodecSpeeds(in, coder, s.codecs[coder.codec]);
  }

  static void ReadCodecSpeeds(Keys& in, const Coder& coder, ThreadSpeeds& speeds) {
    const std::string name = kernels::NameOf(coder.codec);
    in.Quantity(name + "-encode", ParseCount, &speeds.encode, 1);
    in.Quantity(name + "-decode", ParseCount, &speeds.decode, 1);
    if (coder.read_need == nullptr) return;
    in.Quantity(name + "-history-encode", ParseCount, &speeds.history_encode, 1);
    in.Quantity(name + "-history-decode", ParseCount, &speeds.history_decode, 1);
  }

  const std::string& file_;
  Status status_;
  Fleet fleet_;
};

}  // namespace

StatusOr<Fleet> ParseFleet(std::string_view text, const std::string& name) {
  try {
    return FleetReader(name).Read(toml::parse(text, name));
  } catch (const toml::parse_error& e) {
    return Errorf(StatusCode::kInvalidArgument, "{}:{}: {}", name, e.source().begin.line,
                  e.description());
  }
}

StatusOr<Fleet> ReadFleet(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) {
    return Errorf(StatusCode::kNotFound, "{}: cannot be read; name a fleet's TOML file", file);
  }
  return ParseFleet(text.str(), file);
}

}  // namespace deltawire::plan
