#include "common/plan/predict.h"

#include <algorithm>
#include <memory>

#include "common/delta/codec_choice.h"
#include "common/serving/link_estimate.h"

namespace deltawire::plan {
namespace {

// Versions until the estimates of links have settled; one rises by a tenth at most where coders
// bound the pulls.
constexpr int kVersions = 40;

double StageSeconds(const HopTimes& times, Stage stage) {
  for (const StageTime& s : times.stages) {
    if (s.stage == stage) return s.seconds;
  }
  return 0;
}

class Predictor {
 public:
  explicit Predictor(const Fleet& fleet) : fleet_(fleet) {}

  StatusOr<Prediction> Run() {
    DW_ASSIGN_OR_RETURN(result_.model, CutModel(fleet_.model));
    result_.hops = HopsOf(fleet_);
    for (size_t h = 0; h < result_.hops.size(); ++h) {
      links_.push_back(std::make_unique<LinkEstimate>());
    }
    looked_back_.resize(result_.hops.size());
    result_.full = Version(true);
    // The first delta is coded by what the first pull measured, and so on.
    for (int v = 0; v < kVersions; ++v) result_.delta = Version(false);
    return std::move(result_);
  }

 private:
  Forecast Version(bool full) {
    const std::vector<Hop>& hops = result_.hops;
    Forecast f;
    for (size_t h = 0; h < hops.size(); ++h) {
      const Coding coding = CodingOf(h);
      f.link_bytes_per_s.push_back(coding.link_bytes_per_s);
      f.pulls.push_back(full ? FullPull(fleet_, result_.model)
                             : DeltaPull(fleet_, result_.model, coding));
    }
    f.timeline = RunVersion(fleet_, result_.model, hops, f.pulls, full);
    for (size_t h = 0; h < hops.size(); ++h) Learn(h, f);
    Path(f);
    for (const LinkUse& link : f.timeline.links) f.price += link.price;
    return f;
  }

  Coding CodingOf(size_t h) const {
    const Hop& hop = result_.hops[h];
    const Serving& serving = ServingOf(fleet_, result_.hops, hop);
    Coding coding;
    coding.codec = serving.codec;
    coding.link_bytes_per_s = links_[h]->bytes_per_s();
    coding.encode_threads = EncodeThreads(fleet_, result_.hops, hop);
    coding.decode_threads = DecodeThreads(hop);
    // Receivers keep history from the pull on that first used a codec which wants it.
    coding.history = looked_back_[h] != 0 && serving.history > 0;
    return coding;
  }

  // As a ServedPull does when it has ended.
  void Learn(size_t h, const Forecast& f) {
    const PullCost& pull = f.pulls[h];
    const double seconds = StageSeconds(f.timeline.hops[h], Stage::kTransfer);
    const Hop& hop = result_.hops[h];
    const double agents = hop.upstream < 0 ? fleet_.trainer.nodes : 1;
    const double threads = EncodeThreads(fleet_, result_.hops, hop);
    const double coding =
        pull.encode_seconds / agents * EncodedAnew(fleet_, result_.hops, f.pulls, h);
    const double decode = pull.decode_seconds / agents / DecodeThreads(hop);
    links_[h]->Add(static_cast<uint64_t>(pull.payload_bytes / agents), seconds,
                   CodersBound(coding, threads, decode, seconds));
    if (pull.looks_back()) looked_back_[h] = 1;
  }

  void Path(Forecast& f) const {
    const std::vector<Hop>& hops = result_.hops;
    std::vector<size_t> way;
    for (int h = static_cast<int>(f.timeline.last); h >= 0;
         h = hops[static_cast<size_t>(h)].upstream) {
      way.push_back(static_cast<size_t>(h));
    }
    f.path = {f.timeline.publish};
    for (auto h = way.rbegin(); h != way.rend(); ++h) {
      const std::vector<StageTime>& stages = f.timeline.hops[*h].stages;
      f.path.insert(f.path.end(), stages.begin(), stages.end());
    }
    const auto most = std::ranges::max_element(f.path, {}, &StageTime::seconds);
    f.critical = static_cast<size_t>(most - f.path.begin());
  }

  const Fleet& fleet_;
  Prediction result_;
  std::vector<std::unique_ptr<LinkEstimate>> links_;
  std::vector<char> looked_back_;
};

}  // namespace

StatusOr<Prediction> Predict(const Fleet& fleet) { return Predictor(fleet).Run(); }

}  // namespace deltawire::plan
