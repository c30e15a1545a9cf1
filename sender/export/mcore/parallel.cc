#include "sender/export/mcore/parallel.h"

#include <charconv>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <variant>

namespace deltawire::mcore {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t kMaxRanks = 1 << 20;

/// One option: its key, and the member that it sets.
struct Field {
  std::string_view key;
  std::variant<uint32_t ParallelConfig::*, uint64_t ParallelConfig::*, bool ParallelConfig::*,
               std::string ParallelConfig::*, Spec ParallelConfig::*,
               ExpertModules ParallelConfig::*>
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

Status Set(ParallelConfig& config, const Field& field, std::string_view text) {
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
        } else {
          DW_ASSIGN_OR_RETURN(config.*member, Number<T>(field.key, text));
        }
        return absl::OkStatus();
      },
      field.member);
}

/// Sets one option by its key. `world` is kept for when the others are known.
Status SetByKey(ParallelConfig& config, std::string_view key, std::string_view value,
                uint32_t* world) {
  if (key == "world") {
    DW_ASSIGN_OR_RETURN(*world, Number<uint32_t>(key, value));
    return absl::OkStatus();
  }
  for (const Field& field : kFields) {
    if (field.key == key) return Set(config, field, value);
  }
  return Errorf(StatusCode::kInvalidArgument, "parallel config: unknown key \"{}\"; known: {}", key,
                KnownKeys());
}

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

}  // namespace

StatusOr<ParallelConfig> ParallelConfig::Parse(std::string_view text) {
  ParallelConfig config;
  uint32_t world = 0;
  while (!text.empty()) {
    // A layout string has commas of its own, which mean nothing: it is taken up to the next key.
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
    DW_RETURN_IF_ERROR(SetByKey(config, item.substr(0, equals), item.substr(equals + 1), &world));
  }
  DW_RETURN_IF_ERROR(SetWorld(config, world));
  DW_RETURN_IF_ERROR(config.Complete());
  return config;
}

StatusOr<ParallelConfig> ParallelConfig::FromJson(std::string_view json) {
  const Json tree = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!tree.is_object()) {
    return absl::InvalidArgumentError("parallel config: not a JSON object of keys and values");
  }
  ParallelConfig config;
  uint32_t world = 0;
  for (const auto& [key, value] : tree.items()) {
    if (value.is_null()) continue;
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    DW_RETURN_IF_ERROR(SetByKey(config, key, text, &world));
  }
  DW_RETURN_IF_ERROR(SetWorld(config, world));
  DW_RETURN_IF_ERROR(config.Complete());
  return config;
}

std::string ParallelConfig::ToJson() const {
  Json tree;
  for (const Field& field : kFields) {
    std::visit(
        [&](auto member) {
          using T = std::remove_cvref_t<decltype(this->*member)>;
          const std::string key(field.key);
          if constexpr (std::is_same_v<T, Spec>) {
            tree[key] = this->*member == Spec::kLocal ? "local" : "te";
          } else if constexpr (std::is_same_v<T, ExpertModules>) {
            tree[key] = this->*member == ExpertModules::kGrouped ? "grouped" : "sequential";
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
                                   {"vocab_divisor", vocab_divisor}}) {
    if (value == 0 || value > kMaxRanks) {
      return BadValue(key, std::to_string(value), fmt::format("1 to {}", kMaxRanks));
    }
  }
  const uint64_t expert_ranks = uint64_t{etp} * ep, dense = uint64_t{tp} * cp;
  if (dp == 0) dp = static_cast<uint32_t>(expert_ranks / std::gcd(expert_ranks, dense));
  if (dense * dp % expert_ranks != 0) {
    return Errorf(StatusCode::kInvalidArgument,
                  "parallel config: tp * cp * dp = {} is not a multiple of etp * ep = {}",
                  dense * dp, expert_ranks);
  }
  if (dense * dp * pp > kMaxRanks) {
    return Errorf(StatusCode::kInvalidArgument, "parallel config: {} ranks; the limit is {}",
                  dense * dp * pp, kMaxRanks);
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
