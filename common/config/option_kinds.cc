#include "common/config/option_kinds.h"

#include "common/config/size_text.h"

namespace deltawire {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kMaxMillis = 24ull * 60 * 60 * 1000;
constexpr uint64_t kMaxSize = uint64_t{1} << 50;

Endpoint EndpointOf(const std::string& option, const std::string& text) {
  StatusOr<Endpoint> endpoint = ParseEndpoint(text);
  if (endpoint.ok()) return *std::move(endpoint);
  throw CLI::ValidationError(option, std::string(MessageOf(endpoint.status())));
}

}  // namespace

void AddText(CLI::App& app, const std::string& name, std::string_view type, const std::string& help,
             std::string* target, Status (*check)(std::string& text)) {
  const auto run = [check](std::string& text) { return std::string(MessageOf(check(text))); };
  app.add_option(name, *target, help)
      ->transform(CLI::Validator(run, ""))
      ->option_text(Shown(type, *target));
}

CLI::Option* AddEach(CLI::App& app, const std::string& name, const std::string& type,
                     const std::string& help, std::function<Status(const std::string& text)> add) {
  const auto add_all = [name, add = std::move(add)](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      const Status status = add(text);
      if (!status.ok()) throw CLI::ValidationError(name, std::string(MessageOf(status)));
    }
  };
  return app.add_option_function<std::vector<std::string>>(name, add_all, help)
      ->allow_extra_args(false)
      ->option_text(type);
}

CLI::Option* AddListen(CLI::App& app, const std::string& name, const std::string& help,
                       Endpoint* target) {
  const auto set = [name, target](const std::string& text) { *target = EndpointOf(name, text); };
  return app.add_option_function<std::string>(name, set, help)
      ->option_text(Shown("HOST:PORT", ToString(*target)));
}

CLI::Option* AddListen(CLI::App& app, const std::string& name, const std::string& help,
                       std::optional<Endpoint>* target) {
  const auto set = [name, target](const std::string& text) {
    target->reset();
    if (!text.empty()) *target = EndpointOf(name, text);
  };
  return app.add_option_function<std::string>(name, set, help)->option_text("HOST:PORT");
}

void AddNumber(CLI::App& app, const std::string& name, const std::string& help, uint32_t min,
               uint32_t max, uint32_t* target) {
  app.add_option(name, *target, help)
      ->check(CLI::Range(min, max))
      ->option_text(Shown("N", *target));
}

void AddMillis(CLI::App& app, const std::string& name, const std::string& help, uint64_t min,
               milliseconds* target) {
  const auto set = [target](const uint64_t& value) { *target = milliseconds(value); };
  app.add_option_function<uint64_t>(name, set, help)
      ->check(CLI::Range(min, kMaxMillis))
      ->option_text(Shown("MS", target->count()));
}

StatusOr<uint64_t> ParseSizeValue(const std::string& text) {
  DW_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(text, /*kb_is_1000=*/true));
  const bool rounded = bytes == 0 && text.find_first_of("123456789") != std::string::npos;
  if (rounded) return Errorf(StatusCode::kInvalidArgument, "{} is less than one byte", text);
  if (bytes <= kMaxSize) return bytes;
  return Errorf(StatusCode::kInvalidArgument, "{} is more than 1 PiB", text);
}

void AddSize(CLI::App& app, const std::string& name, const std::string& help, uint64_t* target) {
  const auto to_bytes = [](std::string& text) -> std::string {
    const StatusOr<uint64_t> bytes = ParseSizeValue(text);
    if (!bytes.ok()) return std::string(MessageOf(bytes.status()));
    text = std::to_string(*bytes);
    return "";
  };
  app.add_option(name, *target, help)
      ->transform(CLI::Validator(to_bytes, ""))
      ->option_text(*target % (1 << 30) == 0 ? fmt::format("SIZE [{}GiB]", *target >> 30)
                                             : fmt::format("SIZE [{}MiB]", *target >> 20));
}

void AddSwitch(CLI::App& app, const std::string& name, const std::string& help, bool* target) {
  app.add_flag("--" + name + ",!--no-" + name, *target,
               fmt::format("{} [{}]", help, *target ? "on" : "off"));
}

}  // namespace deltawire
