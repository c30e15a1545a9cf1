// The limits command: a systemd drop-in with the memory and descriptors of a daemon's models.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/unit_limits.h"
#include "common/base/human.h"
#include "common/layout/chunks.h"
#include "common/layout/model_dir.h"

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;

// The value that the units set (deploy/systemd). A drop-in must not lower it.
constexpr uint64_t kDescriptorsOfUnits = 65536;

struct LimitsOptions {
  std::string daemon;
  std::vector<std::string> models;
  std::string config;
  ServedReceivers served;
};

/// Returns the model's size under its directory's name, because its name at the daemon is unknown.
StatusOr<ModelSize> SizeOf(const fs::path& dir) {
  DW_ASSIGN_OR_RETURN(const ModelDir model, ModelDir::Open(dir));
  DW_ASSIGN_OR_RETURN(const ChunkTable chunks, ChunkTable::Create(model.layout()));
  DW_ASSIGN_OR_RETURN(const std::vector<SideFile> files, model.ReadSideFiles());
  ModelSize size{.name = fs::canonical(dir).filename().string(),
                 .bytes = model.layout().total_bytes(),
                 .tensors = model.layout().size(),
                 .chunks = chunks.size()};
  for (const SideFile& file : files) size.side_file_bytes += file.content.size();
  return size;
}

/// Reads the daemon's options from `config` as the daemon would, or returns its defaults.
template <typename Options>
StatusOr<Options> Read(const std::string& daemon, const std::string& config,
                       Parsed<Options> (*parse)(int, const char* const*)) {
  if (config.empty()) return Options();
  const char* const arguments[] = {daemon.c_str(), "--config", config.c_str()};
  Parsed<Options> parsed = parse(3, arguments);
  if (parsed.run) return std::move(parsed.options);
  while (parsed.text.ends_with('\n')) parsed.text.pop_back();
  return Errorf(StatusCode::kInvalidArgument, "{}", parsed.text);
}

StatusOr<UnitLimits> Compute(const LimitsOptions& o, const std::vector<ModelSize>& models) {
  if (o.daemon == "sender") {
    DW_ASSIGN_OR_RETURN(const auto options,
                        Read<SenderOptions>("deltawire-sender", o.config, ParseSenderOptions));
    return LimitsOfSender(options, models, o.served);
  }
  DW_ASSIGN_OR_RETURN(const auto options,
                      Read<ReceiverOptions>("deltawire-receiver", o.config, ParseReceiverOptions));
  return LimitsOfReceiver(options, models, o.served);
}

StatusOr<Exit> Limits(const LimitsOptions& o) {
  std::vector<ModelSize> models;
  for (const std::string& dir : o.models) {
    DW_ASSIGN_OR_RETURN(models.emplace_back(), SizeOf(dir));
  }
  DW_ASSIGN_OR_RETURN(const UnitLimits limits, Compute(o, models));
  std::printf("# /etc/systemd/system/deltawire-%s.service.d/limits.conf, for\n", o.daemon.c_str());
  for (const ModelSize& m : models) {
    std::printf("#   %s: %s in %s tensor%s\n", m.name.c_str(), HumanBytes(m.bytes).c_str(),
                Grouped(m.tensors).c_str(), m.tensors == 1 ? "" : "s");
  }
  std::puts("# At most, it takes");
  Table table({{"", Align::kRight, 9}, {""}});
  for (const UnitLimits::Part& part : limits.parts) {
    std::printf("#   %s", table.RowLine({HumanBytes(part.bytes), part.what}).c_str());
  }
  std::printf("# and %s descriptors.\n", Grouped(limits.descriptors).c_str());
  std::printf("[Service]\nMemoryMax=%lluM\n",
              static_cast<unsigned long long>(limits.memory_max >> 20));
  if (limits.descriptors > kDescriptorsOfUnits) {
    std::printf("LimitNOFILE=%llu\n", static_cast<unsigned long long>(limits.descriptors));
  }
  return Exit::kOk;
}

}  // namespace

void DeclareLimits(CLI::App& app, Run* run) {
  auto o = std::make_shared<LimitsOptions>();
  CLI::App* sub = app.add_subcommand(
      "limits", "Print a systemd drop-in with the memory that a daemon's models need");
  sub->add_option("DAEMON", o->daemon, "Whose unit: sender or receiver")
      ->type_name("")
      ->required()
      ->check(Quiet(CLI::IsMember({"sender", "receiver"})));
  NeedDirectory(*sub, "DIR", o->models, "HF model directories, one for each model of the daemon");
  sub->add_option("--config", o->config, "The daemon's TOML file; without it, its defaults count")
      ->type_name("FILE")
      ->check(Quiet(CLI::ExistingFile));
  AddWhole(*sub, "--receivers", o->served.count, "Receivers that it serves at once", 1, 100000)
      ->capture_default_str();
  AddWhole(*sub, "--streams", o->served.streams,
           "Streams of each of them: 4 nearby, up to 32 where round trips are long", 1, 64)
      ->capture_default_str();
  sub->callback([o, run] { *run = [o] { return Limits(*o); }; });
}

}  // namespace deltawire::cli
