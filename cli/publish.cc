// The publish command: acts as a trainer that publishes HF directories.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <thread>

#include "cli/arguments.h"
#include "cli/checkpoint_news.h"
#include "cli/checkpoints.h"
#include "cli/command.h"
#include "cli/connect.h"
#include "cli/interrupt_notice.h"
#include "cli/left_out.h"
#include "cli/output.h"
#include "cli/publisher.h"
#include "common/base/human.h"
#include "proto/convert.h"

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;

constexpr auto kScanEvery = std::chrono::seconds(1);

struct PublishOptions : Common {
  std::string dir;
  uint64_t version = 0;
  bool watch = false;
  bool again = false;
  bool replace = false;
  bool skip_code_files = false;
  std::string inside;
};

Json VersionJson(const std::string& model, const VersionInfo& v, double read_seconds) {
  v1::VersionInfo message;
  ToProto(v, &message);
  Json json = {{"model", model}};
  json.update(ToJson(message));
  json["seconds"] = read_seconds;
  return json;
}

std::string Describe(const std::string& model, const VersionInfo& v) {
  const double total = static_cast<double>(v.model_bytes);
  std::string what;
  if (v.delta_bytes == 0 && v.changed_elements == v.elements) {
    what = fmt::format("whole model, {}", HumanBytes(v.model_bytes));
  } else {
    what = fmt::format(
        "{} of elements changed, delta {} of {} ({})",
        Percent(static_cast<double>(v.changed_elements), static_cast<double>(v.elements)),
        HumanBytes(TransferBytes(v)), HumanBytes(v.model_bytes),
        Percent(static_cast<double>(TransferBytes(v)), total));
  }
  return fmt::format("{}: {} published: {}; written in {}, published in {}, waited {}", model,
                     DescribeFully(v.identity), what, HumanSeconds(v.offload_seconds),
                     HumanSeconds(v.publish_seconds), HumanSeconds(v.trainer_wait_seconds));
}

void Say(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) std::fprintf(stderr, "%s\n", line.c_str());
}

/// The published model, and the notices that the user has seen about it.
struct Publishing {
  std::string model;
  bool is_new = false;
  Identity newest;       ///< the published version; empty: none, or unknown
  uint64_t highest = 0;  ///< the highest version ever published; 0: none, or unknown
  Identity mine;         ///< the last version that this command published
  /// The sender's other models.
  std::vector<std::string> others;
  /// The last lines about files that are left out. Checkpoints of one run have the same lines.
  std::vector<std::string> left_out;
};

std::string NameOf(const fs::path& dir) {
  const fs::path whole = fs::absolute(dir).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

/// Returns the sender's models. A sender of an older release cannot list them; then the list is
/// empty, and the directory names the model.
StatusOr<std::vector<RegisteredModel>> AskModels(const PublishOptions& o) {
  auto known = ListModels(o.socket, o.timeout());
  if (absl::IsUnimplemented(known.status())) return std::vector<RegisteredModel>();
  return known;
}

/// Copies the sender's facts about the model.
void Note(const std::vector<RegisteredModel>& known, Publishing& to) {
  to.newest = {};
  to.highest = 0;
  for (const RegisteredModel& m : known) {
    if (m.name != to.model) continue;
    to.newest = m.published;
    to.highest = m.highest_version;
  }
}

/// Chooses the model of --model, else the only registered one, else the directory's name if there
/// is none.
StatusOr<Publishing> ChoosePublishedModel(const PublishOptions& o) {
  Publishing chosen;
  chosen.model = o.model;
  DW_ASSIGN_OR_RETURN(const std::vector<RegisteredModel> known, AskModels(o));
  for (const RegisteredModel& m : known) chosen.others.push_back(m.name);
  if (chosen.model.empty() && chosen.others.size() > 1) {
    std::string names;
    for (const std::string& name : chosen.others) names += (names.empty() ? "" : ", ") + name;
    return UsageError(
        fmt::format("the sender has several models: choose one with --model ({})", names));
  }
  if (chosen.model.empty()) {
    chosen.model = chosen.others.empty() ? NameOf(o.dir) : chosen.others.front();
  }
  Note(known, chosen);
  chosen.is_new = std::erase(chosen.others, chosen.model) == 0;
  return chosen;
}

Status LookAtModel(const PublishOptions& o, Publishing& to) {
  DW_ASSIGN_OR_RETURN(const std::vector<RegisteredModel> known, AskModels(o));
  Note(known, to);
  return absl::OkStatus();
}

Status PublishDirectory(const PublishOptions& o, const Checkpoint& checkpoint, ThreadPool& pool,
                        Publishing& to) {
  const auto& [dir, version, old, again] = checkpoint;
  const auto start = std::chrono::steady_clock::now();
  // Read the files instead of mapping them: if a mapped file is truncated, SIGBUS kills this
  // process.
  DW_ASSIGN_OR_RETURN(const ModelDir source, ModelDir::Open(dir, ModelDir::Access::kRead));
  std::vector<std::string> foreign;
  DW_ASSIGN_OR_RETURN(std::vector<SideFile> side_files, source.ReadSideFiles(&foreign));
  std::vector<std::string> left_out = LeftOutLines(source, foreign);
  if (left_out != to.left_out) Say(left_out);
  to.left_out = std::move(left_out);
  if (o.skip_code_files) std::erase_if(side_files, IsCodeFile);
  const Content content{&source.layout(), &side_files,
                        [&](size_t i, MutableBytes bytes) { return source.Read(i, bytes); },
                        [&] { return source.Unchanged(); }};
  const auto registered = [&to] {
    if (!std::exchange(to.is_new, false) || to.others.empty()) return;
    Say({fmt::format("new model registered: {} (others: {}); `deltawire unregister {}` undoes that",
                     to.model, NamesText(to.others), to.model)});
  };
  InterruptNotice& notice = InterruptNotice::Of("publish");
  notice.Set(
      fmt::format("version {} of {} may not be published; `deltawire status` shows what the "
                  "sender has",
                  version, to.model));
  const std::shared_ptr<void> done(nullptr, [&notice](void*) { notice.Set(""); });
  VersionInfo published;
  {
    Progress progress(fmt::format("publish {} version {}", to.model, version));
    DW_ASSIGN_OR_RETURN(
        published, PublishVersion({o.socket, to.model, o.timeout(), o.replace, again, registered},
                                  content, version, pool, progress));
  }
  to.mine = published.identity;
  if (o.json) {
    const Json json = VersionJson(to.model, published, SecondsSince(start));
    o.watch ? PrintJsonLine(json) : PrintJson(json);
  } else {
    std::printf("%s\n", Describe(to.model, published).c_str());
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

/// Returns a usage error if `dir` is not a checkpoint but a directory that contains checkpoints.
Status CheckHoldsWeights(const fs::path& dir) {
  if (HoldsWeights(dir)) return absl::OkStatus();
  std::vector<std::string> below;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (HoldsWeights(it->path())) below.push_back(it->path().string());
  }
  if (below.empty()) return absl::OkStatus();  // Open names the missing files
  std::sort(below.begin(), below.end());
  return UsageError(fmt::format(
      "{} holds no weights, but {} {}: name one of these, or add --watch to publish new ones",
      dir.string(), NamesText(below), below.size() == 1 ? "does" : "do"));
}

StatusOr<Exit> PublishOne(const PublishOptions& o) {
  DW_RETURN_IF_ERROR(CheckHoldsWeights(o.dir));
  uint64_t version = o.version;
  if (version == 0) {
    const auto from_name = VersionFromName(NameOf(o.dir));
    if (!from_name) {
      return UsageError(fmt::format("{} does not end in a number: say --version N", o.dir));
    }
    version = *from_name;
  }
  DW_RETURN_IF_ERROR(ProbeSocket(o.socket));
  InterruptNotice::Of("publish");  // before any thread
  ThreadPool pool;
  DW_ASSIGN_OR_RETURN(Publishing to, ChoosePublishedModel(o));
  const Status done = PublishDirectory(o, {o.dir, version}, pool, to);
  if (absl::IsFailedPrecondition(done) && version <= to.newest.id.version) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} (--version N publishes {} under another number)", MessageOf(done), o.dir);
  }
  DW_RETURN_IF_ERROR(done);
  return Exit::kOk;
}

/// Returns whether --watch skips a complete checkpoint, and says so. It skips one that the sender
/// rolled back from, if the checkpoint existed then.
bool IsSkipped(const PublishOptions& o, const Checkpoint& c, const Publishing& to) {
  const bool undone = to.newest.id.version < c.version && c.version <= to.highest;
  if (undone && (c.old || c.again) && !o.again) {
    Say(
        {fmt::format("{}: skipped: the sender rolled back from version {} to {}; --again publishes "
                     "it again",
                     c.path.string(), c.version, ToString(to.newest.id))});
    return true;
  }
  if (!c.again || undone) return false;
  if (!(to.newest == to.mine)) return true;  // a newer version exists
  Say({fmt::format("{}: its files have changed since version {} was published", c.path.string(),
                   c.version)});
  return false;
}

StatusOr<Exit> PublishWatching(const PublishOptions& o) {
  if (o.version != 0) {
    return UsageError("--version and --watch exclude each other; versions come from the names");
  }
  CheckpointScanner scanner(o.dir, o.inside);
  CheckpointNews news(o.dir, o.inside);
  DW_RETURN_IF_ERROR(ProbeSocket(o.socket));
  InterruptNotice::Of("publish");  // before any thread
  DW_ASSIGN_OR_RETURN(Publishing to, ChoosePublishedModel(o));
  Say(news.Begin(to.model));
  ThreadPool pool;
  for (int scans = 1;; ++scans) {
    DW_ASSIGN_OR_RETURN(CheckpointScanner::Found found, scanner.Scan());
    for (const std::string& name : found.unnamed) {
      std::fprintf(stderr, "%s: skipped, its name does not end in a version\n", name.c_str());
    }
    Say(news.Of(found));
    Status known = found.complete.empty() ? absl::OkStatus() : LookAtModel(o, to);
    if (known.ok()) {
      std::erase_if(found.complete, [&](const Checkpoint& c) { return IsSkipped(o, c, to); });
    }
    // A checkpoint is complete in the second scan at the earliest. Of the checkpoints that existed
    // at the start, only the newest is published.
    if (scans == 2 && found.complete.size() > 1) {
      Say({CheckpointNews::LeftOut(found.complete)});
      found.complete.erase(found.complete.begin(), found.complete.end() - 1);
    }
    for (const Checkpoint& c : found.complete) {
      const Status done = known.ok() ? PublishDirectory(o, c, pool, to) : known;
      if (done.ok()) {
        scanner.Published(c);
        continue;
      }
      // A checkpoint that was written to during the publish is reported again, once it is stable.
      const bool again = scanner.ChangedSince(c);
      std::fprintf(stderr, "%s: not published%s: %s\n", c.path.c_str(), again ? " yet" : "",
                   std::string(MessageOf(done)).c_str());
    }
    std::this_thread::sleep_for(kScanEvery);
  }
}

}  // namespace

void DeclarePublish(CLI::App& app, Run* run) {
  auto o = std::make_shared<PublishOptions>();
  CLI::App* sub = app.add_subcommand(
      "publish", "Publish a HF model directory as the next version (plays the trainer)");
  NeedDirectory(*sub, "DIR", o->dir, "HF model directory; with --watch the directory above them");
  AddWhole(*sub, "--version", o->version, "Version; default: the number that DIR's name ends in",
           1);
  CLI::Option* const watch = sub->add_flag(
      "--watch", o->watch,
      "Publish each checkpoint that appears in DIR, e.g. step-120; at first the newest");
  sub->add_flag("--again", o->again, "With --watch: also versions that were rolled back from")
      ->needs(watch);
  sub->add_option("--inside", o->inside,
                  "With --watch: of the weights in a checkpoint, e.g. actor/huggingface")
      ->type_name("PATH")
      ->needs(watch);
  sub->add_flag(
      "--skip-code-files", o->skip_code_files,
      "Leave out side files that engines may execute (*.py); a sender takes them only with "
      "--allow-code-files");
  sub->add_flag("--replace", o->replace, "Drop a registered model of another layout");
  o->AddModel(*sub, "the only one there is; if there is none, the name of DIR");
  o->AddSocket(*sub);
  o->AddTimeout(*sub, 120, "Give up on a version after so long");
  o->AddJson(*sub);
  sub->callback([o, run] {
    *run = [o]() -> StatusOr<Exit> { return o->watch ? PublishWatching(*o) : PublishOne(*o); };
  });
}

}  // namespace deltawire::cli
