#include "sender/export/mcore/parallel.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <variant>

namespace deltawire::mcore {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr uint32_t kMaxRanks = 1 << 20;

struct Field {
  std::string_view key;
  std::variant<uint32_t ParallelConfig::*, uint64_t ParallelConfig::*, bool ParallelConfig::*,
               std::string ParallelConfig::*, Spec ParallelConfig::*,
               ExpertModules ParallelConfig::*, CoreVersion ParallelConfig::*>
      member;
};

const Field kFields[] = {
    {"tp", &ParallelConfig::tp},
    {"pp", &ParallelConfig::pp},
    {"vpp", &ParallelConfig::vpp},
    {"ep", &ParallelConfig::ep},
    {"etp", &ParallelConfig::etp},
    {"cp", &ParallelConfig::cp},
    {"dp", &ParallelConfig::dp},
    {"first_stage_layers", &ParallelConfig::first_stage_layers},
    {"last_stage_layers", &ParallelConfig::last_stage_layers},
    {"account_for_embedding", &ParallelConfig::account_for_embedding},
    {"account_for_loss", &ParallelConfig::account_for_loss},
    {"layout", &ParallelConfig::layout},
    {"vocab_divisor", &ParallelConfig::vocab_divisor},
    {"padded_vocab", &ParallelConfig::padded_vocab},
    {"spec", &ParallelConfig::spec},
    {"experts", &ParallelConfig::experts},
    {"glu_interleave", &ParallelConfig::glu_interleave},
    {"shared_glu_interleave", &ParallelConfig::shared_glu_interleave},
    {"mla_down_fusion", &ParallelConfig::mla_down_fusion},
    {"mtp", &ParallelConfig::mtp},
    {"vision", &ParallelConfig::vision},
    {"core_version", &ParallelConfig::core},
};

std::string KnownKeys() {
  std::string text = "world";
  for (const Field& f : kFields) text += fmt::format(", {}", f.key);
  return text;
}

Status BadValue(std::string_view key, std::string_view value, std::string_view wanted) {
  return Errorf(StatusCode::kInvalidArgument, "parallel config: {}={}: wanted {}", key, value,
                wanted);
}

template <typename T>
StatusOr<T> Number(std::string_view key, std::string_view text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return BadValue(key, text, "a whole number");
  }
  return value;
}

Status SetField(ParallelConfig& config, const Field& field, std::string_view text) {
  return std::visit(
      [&](auto member) -> Status {
        using T = std::remove_reference_t<decltype(config.*member)>;
        if constexpr (std::is_same_v<T, bool>) {
          if (text != "true" && text != "false" && text != "1" && text != "0") {
            return BadValue(field.key, text, "true or false");
          }
          config.*member = text == "true" || text == "1";
        } else if constexpr (std::is_same_v<T, std::string>) {
          config.*member = std::string(text);
        } else if constexpr (std::is_same_v<T, Spec>) {
          if (text != "te" && text != "local") return BadValue(field.key, text, "te or local");
          config.*member = text == "te" ? Spec::kTransformerEngine : Spec::kLocal;
        } else if constexpr (std::is_same_v<T, ExpertModules>) {
          if (text != "grouped" && text != "sequential") {
            return BadValue(field.key, text, "grouped or sequential");
          }
          config.*member = text == "grouped" ? ExpertModules::kGrouped : ExpertModules::kSequential;
        } else if constexpr (std::is_same_v<T, CoreVersion>) {
          DW_ASSIGN_OR_RETURN(config.*member, CoreVersion::Parse(text));
        } else {
          DW_ASSIGN_OR_RETURN(config.*member, Number<T>(field.key, text));
        }
        return absl::OkStatus();
      },
      field.member);
}

/// Sets options by their keys, each once. Keeps `world` until all others are known.
class Setter {
 public:
  explicit Setter(ParallelConfig& config) : config_(config) {}

  Status Set(std::string_view key, std::string_view value) {
    if (!seen_.emplace(key).second) {
      return Errorf(StatusCode::kInvalidArgument, "parallel config: \"{}\" is given twice", key);
    }
    if (key == "world") {
      DW_ASSIGN_OR_RETURN(world_, Number<uint32_t>(key, value));
      return absl::OkStatus();
    }
    for (const Field& field : kFields) {
      if (field.key == key) return SetField(config_, field, value);
    }
    return Errorf(StatusCode::kInvalidArgument, "parallel config: unknown key \"{}\"; known: {}",
                  key, KnownKeys());
  }
  uint32_t world() const { return world_; }

 private:
  ParallelConfig& config_;
  std::set<std::string, std::less<>> seen_;
  uint32_t world_ = 0;
};

Status SetWorld(ParallelConfig& config, uint32_t world) {
  if (world == 0) return absl::OkStatus();
  const uint64_t model = uint64_t{config.tp} * config.cp * config.pp;
  if (model == 0 || world % model != 0) {
    return Errorf(StatusCode::kInvalidArgument,
                  "parallel config: world={} is not a multiple of tp * cp * pp = {}", world, model);
  }
  const auto dp = static_cast<uint32_t>(world / model);
  if (config.dp != 0 && config.dp != dp) {
    return Errorf(StatusCode::kInvalidArgument, "parallel config: world={} makes dp={}, not {}",
                  world, dp, config.dp);
  }
  config.dp = dp;
  return absl::OkStatus();
}

Status SetByText(Setter& to, std::string_view text) {
  while (!text.empty()) {
    // A layout string contains commas itself, so it extends up to the next "key=".
    size_t end = text.find(',');
    while (end != std::string_view::npos) {
      const std::string_view rest = text.substr(end + 1);
      if (rest.substr(0, rest.find(',')).find('=') != std::string_view::npos) break;
      end = text.find(',', end + 1);
    }
    const std::string_view item = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      return Errorf(StatusCode::kInvalidArgument,
                    "parallel config: \"{}\" is not KEY=VALUE, as in tp=4,pp=2,ep=8", item);
    }
    DW_RETURN_IF_ERROR(to.Set(item.substr(0, equals), item.substr(equals + 1)));
  }
  return absl::OkStatus();
}

Status SetByJson(Setter& to, std::string_view text) {
  std::set<std::string> keys;
  std::string twice;
  const auto note_keys = [&](int, OrderedJson::parse_event_t event, OrderedJson& parsed) {
    if (event == OrderedJson::parse_event_t::key &&
        !keys.insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  const OrderedJson tree = OrderedJson::parse(text, note_keys, /*allow_exceptions=*/false);
  if (!tree.is_object()) {
    return absl::InvalidArgumentError("parallel config: not a JSON object of keys and values");
  }
  if (!twice.empty()) {
    return Errorf(StatusCode::kInvalidArgument, "parallel config: \"{}\" is given twice", twice);
  }
  for (const auto& [key, value] : tree.items()) {
    if (value.is_null()) continue;
    DW_RETURN_IF_ERROR(to.Set(key, value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return absl::OkStatus();
}

Status TooManyRanks(std::string_view what_makes) {
  return Errorf(StatusCode::kInvalidArgument, "parallel config: {} too many ranks; the limit is {}",
                what_makes, kMaxRanks);
}

bool IsJson(std::string_view text) {
  const size_t first = text.find_first_not_of(" \n\r\t");
  return first != std::string_view::npos && (text[first] == '{' || text[first] == '[');
}

}  // namespace

StatusOr<CoreVersion> CoreVersion::Parse(std::string_view text) {
  CoreVersion version;
  const char* end = text.data() + text.size();
  if (text.starts_with("0.")) {
    const auto [at, error] = std::from_chars(text.data() + 2, end, version.minor);
    if (error == std::errc{} && (at == end || *at == '.')) return version;
  }
  return BadValue("core_version", text, "a version of megatron-core such as 0.16");
}

StatusOr<ParallelConfig> ParallelConfig::Parse(std::string_view text) {
  ParallelConfig config;
  Setter setter(config);
  DW_RETURN_IF_ERROR(IsJson(text) ? SetByJson(setter, text) : SetByText(setter, text));
  DW_RETURN_IF_ERROR(SetWorld(config, setter.world()));
  DW_RETURN_IF_ERROR(config.Complete());
  return config;
}

StatusOr<ParallelConfig> ParallelConfig::Open(const std::string& text_or_path) {
  std::error_code error;
  if (IsJson(text_or_path) || !std::filesystem::is_regular_file(text_or_path, error)) {
    return Parse(text_or_path);
  }
  std::ifstream in(text_or_path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  auto config = in ? Parse(text) : absl::NotFoundError("cannot be read");
  if (!config.ok()) return Annotate(config.status(), text_or_path);
  return config;
}

std::string ParallelConfig::ToJson() const {
  OrderedJson tree;
  for (const Field& field : kFields) {
    std::visit(
        [&](auto member) {
          using T = std::remove_cvref_t<decltype(this->*member)>;
          const std::string key(field.key);
          if constexpr (std::is_same_v<T, Spec>) {
            tree[key] = this->*member == Spec::kLocal ? "local" : "te";
          } else if constexpr (std::is_same_v<T, ExpertModules>) {
            tree[key] = this->*member == ExpertModules::kGrouped ? "grouped" : "sequential";
          } else if constexpr (std::is_same_v<T, CoreVersion>) {
            tree[key] = fmt::format("0.{}", (this->*member).minor);
          } else {
            tree[key] = this->*member;
          }
        },
        field.member);
  }
  return tree.dump(2);
}

Status ParallelConfig::Complete() {
  if (etp == 0) etp = tp;
  for (const auto& [key, value] : {std::pair{"tp", tp},
                                   {"pp", pp},
                                   {"vpp", vpp},
                                   {"ep", ep},
                                   {"etp", etp},
                                   {"cp", cp},
                                   {"dp", dp == 0 ? 1 : dp},
                                   {"vocab_divisor", vocab_divisor}}) {
    if (value == 0 || value > kMaxRanks) {
      return BadValue(key, std::to_string(value), fmt::format("1 to {}", kMaxRanks));
    }
  }
  if (vpp > 1 && pp == 1) {
    return BadValue("vpp", std::to_string(vpp), "1 where there is one pipeline rank");
  }
  const uint64_t expert_ranks = uint64_t{etp} * ep, dense = uint64_t{tp} * cp;
  if (dp == 0) {
    const uint64_t smallest = expert_ranks / std::gcd(expert_ranks, dense);
    if (smallest > kMaxRanks) return TooManyRanks(fmt::format("dp={} makes", smallest));
    dp = static_cast<uint32_t>(smallest);
  }
  if (dense * dp % expert_ranks != 0) {
    return Errorf(StatusCode::kInvalidArgument,
                  "parallel config: tp * cp * dp = {} is not a multiple of etp * ep = {}",
                  dense * dp, expert_ranks);
  }
  // The product of all four can exceed 64 bits.
  if (dense * dp > kMaxRanks || dense * dp * pp > kMaxRanks) {
    return TooManyRanks(fmt::format("tp={}, cp={}, dp={} and pp={} make", tp, cp, dp, pp));
  }
  return absl::OkStatus();
}

RankPlace PlaceOf(const ParallelConfig& c, uint32_t rank) {
  RankPlace at;
  at.tp = rank % c.tp;
  at.cp = rank / c.tp % c.cp;
  at.dp = rank / (c.tp * c.cp) % c.dp;
  at.pp = rank / (c.tp * c.cp * c.dp);
  at.etp = rank % c.etp;
  at.ep = rank / c.etp % c.ep;
  at.expert_dp = rank / (c.etp * c.ep) % c.expert_dp();
  return at;
}

}  // namespace deltawire::mcore
