#include "common/plan/predict.h"

#include <algorithm>
#include <deque>
#include <memory>

#include "common/delta/codec_choice.h"
#include "common/serving/link_estimate.h"

namespace deltawire::plan {
namespace {

// The number of versions until the link estimates have settled. An estimate rises by at most a
// tenth per version if coders bound the pulls.
constexpr int kVersions = 40;
// Codecs may alternate, as the measured cost of the one in use rises until another is cheaper; then
// versions differ. The forecast is the median, by time, of this many last versions.
constexpr size_t kLast = 15;

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
    for (const Hop& hop : result_.hops) {
      links_.push_back(std::make_unique<LinkEstimate>());
      ways_.emplace_back().Called(hop.round_trip());
    }
    looked_back_.resize(result_.hops.size());
    result_.full = Version(true);
    // The first delta's codec follows from the first pull's measurements, and so on.
    std::deque<Forecast> last;
    for (int v = 0; v < kVersions; ++v) {
      last.push_back(Version(false));
      if (last.size() > kLast) last.pop_front();
    }
    const auto middle = last.begin() + kLast / 2;
    std::ranges::nth_element(last, middle, {},
                             [](const Forecast& f) { return f.timeline.seconds; });
    result_.delta = std::move(*middle);
    return std::move(result_);
  }

 private:
  Forecast Version(bool full) {
    std::vector<Hop>& hops = result_.hops;
    Forecast f;
    for (size_t h = 0; h < hops.size(); ++h) {
      hops[h].streams = StreamsOf(hops[h], ways_[h]);
      const Coding coding = CodingOf(h);
      f.link_bytes_per_s.push_back(coding.link_bytes_per_s);
      if (PassedOn(hops[h])) {
        f.pulls.push_back(AsItCame(f.pulls[static_cast<size_t>(hops[h].upstream)]));
      } else {
        f.pulls.push_back(full ? FullPull(fleet_, result_.model)
                               : DeltaPull(fleet_, result_.model, coding));
      }
    }
    f.timeline = RunVersion(fleet_, result_.model, hops, f.pulls, full);
    for (size_t h = 0; h < hops.size(); ++h) Learn(h, f);
    Path(f);
    for (const LinkUse& link : f.timeline.links) f.price += link.price;
    return f;
  }

  // A relay passes payloads on as they were encoded, after it has checked each.
  static PullCost AsItCame(PullCost pull) {
    pull.encode_seconds = 0;
    pull.first_chunk_seconds = pull.last_chunk_seconds;
    return pull;
  }

  Coding CodingOf(size_t h) const {
    const Hop& hop = result_.hops[h];
    const Serving& serving = ServingOf(fleet_, result_.hops, hop);
    Coding coding;
    coding.codec = serving.codec;
    coding.link_bytes_per_s = links_[h]->bytes_per_s();
    coding.encode_threads = EncodeThreads(fleet_, result_.hops, hop);
    coding.decode_threads = DecodeThreads(hop);
    // Receivers keep history once a pull has used a codec that needs it.
    coding.history = looked_back_[h] != 0 && serving.history > 0;
    return coding;
  }

  // Records what a ServedPull and a pull client would have measured in a pull.
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
    if (seconds > 0) {
      ways_[h].Pulled({.link = {hop.round_trip(), pull.wire_bytes / agents / seconds},
                       .seconds = seconds,
                       .streams = static_cast<uint16_t>(hop.streams)});
    }
    if (pull.looks_back()) looked_back_[h] = 1;
  }

  // The critical path to a hop: its upstream's stages up to this hop's begin, or, if the upstream's
  // transfer held up this one, up to the end of that transfer; then the rest of its own stages.
  std::vector<StageTime> PathTo(const Timeline& t, int h) const {
    if (h < 0) return {t.publish};
    const HopTimes& own = t.hops[static_cast<size_t>(h)];
    const int upstream = result_.hops[static_cast<size_t>(h)].upstream;
    double from = own.stages.front().begin;
    if (own.held) {
      const auto& before = t.hops[static_cast<size_t>(upstream)].stages;
      const auto transfer = std::ranges::find(before, Stage::kTransfer, &StageTime::stage);
      from = transfer->begin + transfer->seconds;
    }
    std::vector<StageTime> path;
    for (StageTime s : PathTo(t, upstream)) {
      if (s.begin >= from) break;
      s.seconds = std::min(s.seconds, from - s.begin);
      path.push_back(std::move(s));
    }
    for (StageTime s : own.stages) {
      const double end = s.begin + s.seconds;
      if (end < from) continue;
      s.begin = std::max(s.begin, from);
      s.seconds = end - s.begin;
      path.push_back(std::move(s));
    }
    return path;
  }

  void Path(Forecast& f) const {
    f.path = PathTo(f.timeline, static_cast<int>(f.timeline.last));
    const auto most = std::ranges::max_element(f.path, {}, &StageTime::seconds);
    f.critical = static_cast<size_t>(most - f.path.begin());
  }

  const Fleet& fleet_;
  Prediction result_;
  std::vector<std::unique_ptr<LinkEstimate>> links_;
  std::vector<net::LinkRecord> ways_;
  std::vector<char> looked_back_;
};

}  // namespace

StatusOr<Prediction> Predict(const Fleet& fleet) { return Predictor(fleet).Run(); }

}  // namespace deltawire::plan
