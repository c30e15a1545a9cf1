#include "cli/demo_run.h"

#include <algorithm>
#include <cstdio>

#include "cli/demo_daemons.h"
#include "cli/demo_python.h"
#include "cli/demo_source.h"
#include "cli/output.h"
#include "cli/publisher.h"
#include "cli/raw_reader.h"
#include "common/base/human.h"
#include "kernels/kernels.h"
#include "proto/convert.h"

namespace deltawire::cli {
namespace {

constexpr auto kTrainerTimeout = std::chrono::seconds(60);

/// One row: a version's figures from the trainer, the sender and the receivers.
struct DemoRow {
  VersionInfo published;
  uint64_t moved_bytes = 0;      // of the last receiver to commit
  double committed_seconds = 0;  // from ready to committed, at that receiver
  double verify_seconds = 0;
};

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

class Show {
 public:
  explicit Show(const DemoPlan& plan)
      : plan_(plan), model_("qwen3-" + std::string(plan.shape.name)), table_(Columns()) {}

  Status Run();

 private:
  static std::vector<Column> Columns();
  Status Prepare();
  Status Introduce() const;
  Status PublishNext(uint64_t version);
  StatusOr<DemoRow> Measure(uint64_t version, const VersionInfo& published);
  Status VerifyBytes(uint64_t version);
  void Print(const DemoRow& row);
  void Summarize() const;
  Status SecondReader();
  void SayWhatIsKept() const;

  const DemoPlan& plan_;
  const std::string model_;
  Table table_;
  ThreadPool pool_;
  std::unique_ptr<DemoSource> source_;
  std::unique_ptr<DemoDaemons> daemons_;
  std::unique_ptr<TrainerClient> trainer_;
  std::vector<DemoRow> rows_;
};

std::vector<Column> Show::Columns() {
  constexpr Align kRight = Align::kRight;
  return {{"version", kRight, 7},
          {"changed", kRight, 8},
          {"full", kRight, 8},
          {"delta", kRight, 8},
          {"delta/full", kRight, 10},
          {"ready → committed", kRight, 17},
          {"trainer's wait", kRight, 14},
          {"verified", Align::kLeft, 8}};
}

Status Show::Introduce() const {
  if (plan_.json) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const Layout layout, Layout::Create(synth::MakeTensors(plan_.shape)));
  const bool several = plan_.receivers > 1;
  std::printf("%s: %zu tensors, %s parameters, %s in bf16; AdamW with fp32 masters, lr 1e-6\n",
              model_.c_str(), layout.size(), Grouped(layout.total_bytes() / 2).c_str(),
              HumanBytes(layout.total_bytes()).c_str());
  std::printf(
      "1 sender, %u receiver%s over loopback TCP, %u streams per pull; %zu cores, kernels %s\n",
      plan_.receivers, several ? "s" : "", plan_.streams, pool_.size(), kernels::Best().name);
  std::printf(
      "Version 1 goes whole, the others as deltas. ready → committed: from the trainer's last "
      "write\nuntil %s directory is wholly that version. verified: every byte compared with the\n"
      "trainer's by code that shares nothing with what moved them.\n\n",
      several ? "every receiver's" : "the receiver's");
  std::fflush(stdout);
  return absl::OkStatus();
}

Status Show::Prepare() {
  {
    Progress progress(fmt::format("drawing {}'s weights", model_));
    DW_ASSIGN_OR_RETURN(
        source_, DemoSource::Create(plan_.shape, plan_.seed, plan_.directory / "source", pool_));
    progress.Stage("starting the sender");
    DW_ASSIGN_OR_RETURN(daemons_, DemoDaemons::Start(plan_, model_));
    trainer_ = std::make_unique<TrainerClient>(daemons_->socket(), model_, 0, 1, kTrainerTimeout);
    progress.Stage("allocating the sender's two halves");
    const Content content = source_->content();
    const auto nothing = trainer_->Register(*content.layout, *content.side_files);
    if (!nothing.ok()) return daemons_->WithLogs(nothing.status());
    progress.Stage("starting the receivers, allocating their memory");
    DW_RETURN_IF_ERROR(daemons_->StartReceivers(plan_));
  }
  return absl::OkStatus();
}

Status Show::PublishNext(uint64_t version) {
  DemoRow row;
  {
    Progress progress(fmt::format("version {}: training step", version));
    if (version > 1) source_->Step(pool_);
    progress.Stage(fmt::format("version {}: publishing", version));
    DW_ASSIGN_OR_RETURN(const VersionInfo published,
                        WriteVersion(*trainer_, source_->content(), version, 0, pool_, progress));
    progress.Stage(fmt::format("version {}: waiting for the commit", version));
    DW_ASSIGN_OR_RETURN(row, Measure(version, published));
    progress.Stage(fmt::format("version {}: comparing every byte", version));
    const auto start = std::chrono::steady_clock::now();
    DW_RETURN_IF_ERROR(VerifyBytes(version));
    row.verify_seconds = SecondsSince(start);
  }
  rows_.push_back(row);
  Print(row);
  return absl::OkStatus();
}

StatusOr<DemoRow> Show::Measure(uint64_t version, const VersionInfo& published) {
  DemoRow row{.published = published};
  for (size_t r = 0; r < daemons_->receivers(); ++r) {
    DW_ASSIGN_OR_RETURN(const v1::CommitInfo commit, daemons_->WaitCommit(r, version));
    if (FromProto(commit.id()) != published.identity) {
      return Errorf(StatusCode::kInternal, "receiver {} committed {} where {} was published", r + 1,
                    DescribeFully(FromProto(commit.id())), DescribeFully(published.identity));
    }
    const double seconds =
        static_cast<double>(commit.committed_unix_nanos() - published.ready_unix_nanos) * 1e-9;
    if (r > 0 && seconds < row.committed_seconds) continue;
    row.committed_seconds = seconds;
    row.moved_bytes = commit.stats().payload_bytes();
  }
  return row;
}

Status Show::VerifyBytes(uint64_t version) {
  const std::vector<WantedTensor> wanted = source_->wanted();
  for (size_t r = 0; r < daemons_->receivers(); ++r) {
    const std::filesystem::path file = daemons_->directory(r) / "model.safetensors";
    auto opened = RawModelFile::Open(file);
    const Status equal = opened.ok() ? CheckEqual(*opened, wanted, pool_) : opened.status();
    if (!equal.ok()) {
      return Annotate(equal, fmt::format("version {} is NOT VERIFIED at receiver {} ({})", version,
                                         r + 1, file.string()));
    }
  }
  return absl::OkStatus();
}

void Show::Print(const DemoRow& row) {
  const VersionInfo& v = row.published;
  const bool whole = rows_.size() == 1;
  const auto ratio = [](uint64_t part, uint64_t all) {
    return Percent(static_cast<double>(part), static_cast<double>(all));
  };
  if (plan_.json) {
    PrintJsonLine({{"event", "verified"},
                   {"version", v.identity.id.version},
                   {"elements", v.elements},
                   {"changed_elements", v.changed_elements},
                   {"model_bytes", v.model_bytes},
                   {"delta_bytes", TransferBytes(v)},
                   {"moved_bytes", row.moved_bytes},
                   {"ready_to_committed_seconds", row.committed_seconds},
                   {"trainer_wait_seconds", v.trainer_wait_seconds},
                   {"offload_seconds", v.offload_seconds},
                   {"publish_seconds", v.publish_seconds},
                   {"verify_seconds", row.verify_seconds},
                   {"verified", true}});
    return;
  }
  std::fputs(table_
                 .RowLine({std::to_string(v.identity.id.version),
                           whole ? "first" : ratio(v.changed_elements, v.elements),
                           HumanBytes(v.model_bytes), whole ? "-" : HumanBytes(row.moved_bytes),
                           whole ? "-" : ratio(row.moved_bytes, v.model_bytes),
                           HumanSeconds(row.committed_seconds),
                           HumanSeconds(v.trainer_wait_seconds), "yes"})
                 .c_str(),
             stdout);
  std::fflush(stdout);
}

void Show::Summarize() const {
  double part = 0, wait = 0;
  std::vector<double> seconds;
  for (size_t i = 1; i < rows_.size(); ++i) {
    const DemoRow& row = rows_[i];
    part += static_cast<double>(row.moved_bytes) / static_cast<double>(row.published.model_bytes);
    seconds.push_back(row.committed_seconds);
  }
  for (const DemoRow& row : rows_) wait = std::max(wait, row.published.trainer_wait_seconds);
  const double median = Median(seconds);
  const double deltas = static_cast<double>(seconds.size());
  if (plan_.json) {
    PrintJsonLine({{"event", "summary"},
                   {"versions", rows_.size()},
                   {"verified", rows_.size()},
                   {"receivers", daemons_->receivers()},
                   {"mean_delta_to_full", deltas > 0 ? part / deltas : 0},
                   {"median_ready_to_committed_seconds", median},
                   {"full_ready_to_committed_seconds", rows_.front().committed_seconds},
                   {"longest_trainer_wait_seconds", wait}});
    return;
  }
  std::printf("\n%zu versions verified bit for bit", rows_.size());
  if (deltas > 0) {
    std::printf(" · a delta is %s of the full model · committed in %s against %s",
                Percent(part, deltas).c_str(), HumanSeconds(median).c_str(),
                HumanSeconds(rows_.front().committed_seconds).c_str());
  }
  std::printf(" · the trainer waited %s at most\n", HumanSeconds(wait).c_str());
  std::fflush(stdout);
}

// Free the trace first, because the Python reader needs twice the model's memory.
Status Show::SecondReader() {
  PythonCheck check;
  {
    Progress progress("loading the receiver's directory with Python's safetensors");
    DW_RETURN_IF_ERROR(source_->WriteDirectory());
    source_->DropTrace();
    check = CheckWithPython(daemons_->directory(0), source_->directory(), plan_.directory);
  }
  const bool different = check.result == PythonCheck::Result::kDifferent;
  if (plan_.json) {
    const bool run = check.result != PythonCheck::Result::kNotRun;
    PrintJsonLine({{"event", "second reader"},
                   {"run", run},
                   {"equal", run && !different},
                   {"message", check.text}});
  } else if (!different) {
    std::printf("Second reader: %s\n", check.text.c_str());
  }
  if (!different) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss, "Python's safetensors does not agree: {}", check.text);
}

void Show::SayWhatIsKept() const {
  if (!plan_.keep || plan_.json) return;
  std::printf("Kept: %s (source, receiver-1 ..., logs); remove it when done\n",
              plan_.directory.c_str());
}

Status Show::Run() {
  DW_RETURN_IF_ERROR(Introduce());
  DW_RETURN_IF_ERROR(Prepare());
  if (!plan_.json) std::fputs(table_.TitleLine().c_str(), stdout);
  for (uint64_t version = 1; version <= plan_.steps + 1; ++version) {
    const Status shown = PublishNext(version);
    if (!shown.ok()) return daemons_->WithLogs(shown);
  }
  Summarize();
  DW_RETURN_IF_ERROR(SecondReader());
  daemons_->Stop();
  SayWhatIsKept();
  return absl::OkStatus();
}

}  // namespace

Status RunDemo(const DemoPlan& plan) { return Show(plan).Run(); }

}  // namespace deltawire::cli
