// The verify command: compares a receiver's memory with its digests, or its directory with another.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/connect.h"
#include "cli/output.h"
#include "common/base/human.h"
#include "common/base/thread_pool.h"
#include "common/layout/chunks.h"
#include "common/layout/model_dir.h"
#include "proto/convert.h"

namespace deltawire::cli {
namespace {

constexpr size_t kNamesShown = 10;

struct VerifyOptions : Common {
  bool repair = false;
  bool engines = false;
  std::string against;
};

StatusOr<Exit> VerifyDigests(const VerifyOptions& o, Receiver& receiver, const std::string& model) {
  v1::VerifyRequest request;
  request.set_model(model);
  request.set_repair(o.repair);
  request.set_engines(o.engines);
  v1::VerifyResponse r;
  {
    Progress progress(fmt::format("verify {}", model));
    DW_ASSIGN_OR_RETURN(r, Ask(receiver, &Receiver::Stub::Verify, request, o.timeout()));
  }
  const bool engines_good = std::all_of(r.engines().begin(), r.engines().end(),
                                        [](const v1::EngineCheck& e) { return e.error().empty(); });
  const bool good = (r.bad_chunks() == 0 || r.repaired()) && engines_good;
  if (o.json) {
    Json json = {{"model", model}, {"good", good}};
    json.update(ToJson(r));
    PrintJson(json);
    return good ? Exit::kOk : Exit::kDiffers;
  }
  std::printf("%s: %s: %llu chunks, %s checked in %s: ", model.c_str(),
              DescribeFully(FromProto(r.committed())).c_str(),
              static_cast<unsigned long long>(r.chunks()), HumanBytes(r.bytes()).c_str(),
              HumanSeconds(r.seconds()).c_str());
  if (r.bad_chunks() == 0) {
    std::printf("all good\n");
  } else {
    std::printf("%llu bad%s\n", static_cast<unsigned long long>(r.bad_chunks()),
                r.repaired() ? ", fetched whole and good now"
                             : "; `deltawire verify --repair` fetches them again");
  }
  for (int i = 0; i < std::min<int>(r.bad_tensors_size(), kNamesShown); ++i) {
    std::printf("  %s\n", r.bad_tensors(i).c_str());
  }
  if (r.bad_tensors_size() > static_cast<int>(kNamesShown)) {
    std::printf("  and %zu more tensors\n", r.bad_tensors_size() - kNamesShown);
  }
  for (const v1::EngineCheck& e : r.engines()) {
    std::printf("%s: engine %s: %s\n", model.c_str(), e.name().c_str(),
                e.error().empty() ? "all good" : e.error().c_str());
  }
  return good ? Exit::kOk : Exit::kDiffers;
}

struct Comparison {
  std::string layout_difference;
  std::vector<std::string> tensors;  // tensors that differ, in stored order
  uint64_t bytes = 0;
};

// Ignores the order in the files: shards have one order, a receiver's file another.
std::string LayoutDifference(const Layout& want, const Layout& got) {
  bool same = want.size() == got.size();
  for (size_t i = 0; i < want.size() && same; ++i) {
    const auto at = got.Find(want.tensor(i).name);
    same = at && got.tensor(*at) == want.tensor(i);
  }
  return same ? "" : DescribeDifference(want, got);
}

StatusOr<Comparison> Compare(const ModelDir& want, const ModelDir& got, const std::string& label) {
  Comparison result;
  result.layout_difference = LayoutDifference(want.layout(), got.layout());
  if (!result.layout_difference.empty()) return result;
  const Layout& layout = want.layout();
  DW_ASSIGN_OR_RETURN(const ChunkTable chunks, ChunkTable::Create(layout));
  Progress progress(label, layout.total_bytes());
  ThreadPool pool;
  std::mutex mu;
  std::set<uint32_t> differ;
  pool.ParallelFor(chunks.size(), [&](size_t i) {
    const Chunk& c = chunks[static_cast<uint32_t>(i)];
    const uint64_t at = c.offset - layout.offset(c.tensor);
    const Bytes a = want.data(c.tensor).subspan(at, c.bytes);
    const Bytes b = got.data(*got.layout().Find(layout.tensor(c.tensor).name)).subspan(at, c.bytes);
    if (std::memcmp(a.data(), b.data(), c.bytes) != 0) {
      std::lock_guard lock(mu);
      differ.insert(c.tensor);
    }
    progress.Add(c.bytes);
  });
  for (const uint32_t t : differ) result.tensors.push_back(layout.tensor(t).name);
  result.bytes = layout.total_bytes();
  return result;
}

Exit Report(const VerifyOptions& o, const std::string& model, const v1::ReceiverModelStatus& m,
            const Comparison& c) {
  const bool good = c.layout_difference.empty() && c.tensors.empty();
  if (o.json) {
    PrintJson({{"model", model},
               {"good", good},
               {"committed", ToJson(m.committed())},
               {"directory", m.directory()},
               {"against", o.against},
               {"bytes", c.bytes},
               {"layout_difference", c.layout_difference},
               {"different_tensors", c.tensors}});
  } else if (good) {
    std::printf("%s: %s in %s equals %s: %s compared byte by byte\n", model.c_str(),
                DescribeFully(FromProto(m.committed())).c_str(), m.directory().c_str(),
                o.against.c_str(), HumanBytes(c.bytes).c_str());
  } else if (!c.layout_difference.empty()) {
    std::printf("%s: another layout than %s: %s\n", model.c_str(), o.against.c_str(),
                c.layout_difference.c_str());
  } else {
    std::printf("%s: %s in %s differs from %s in %zu tensors:\n", model.c_str(),
                DescribeFully(FromProto(m.committed())).c_str(), m.directory().c_str(),
                o.against.c_str(), c.tensors.size());
    for (size_t i = 0; i < std::min(c.tensors.size(), kNamesShown); ++i) {
      std::printf("  %s\n", c.tensors[i].c_str());
    }
    if (c.tensors.size() > kNamesShown) {
      std::printf("  and %zu more\n", c.tensors.size() - kNamesShown);
    }
  }
  return good ? Exit::kOk : Exit::kDiffers;
}

StatusOr<Exit> VerifyAgainst(const VerifyOptions& o, Receiver& receiver, const std::string& model) {
  constexpr int kAttempts = 5;
  DW_ASSIGN_OR_RETURN(const ModelDir want, ModelDir::Open(o.against));
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    DW_ASSIGN_OR_RETURN(const auto before, GetStatus(receiver, model, std::chrono::seconds(10)));
    const v1::ReceiverModelStatus& m = before.models(0);
    if (m.committed().epoch() == 0) {
      return Errorf(
          StatusCode::kFailedPrecondition,
          "{}: the receiver has no whole version now ({}); try again after `deltawire sync`", model,
          m.phase());
    }
    const StatusOr<ModelDir> got = ModelDir::Open(m.directory());
    StatusOr<Comparison> compared = Comparison();
    if (got.ok()) {
      compared = Compare(want, *got, fmt::format("compare {}", model));
      if (!compared.ok()) return compared.status();
    } else {
      compared = got.status();
    }
    // The comparison is valid only if the receiver held the same version throughout.
    DW_ASSIGN_OR_RETURN(const auto after, GetStatus(receiver, model, std::chrono::seconds(10)));
    if (FromProto(after.models(0).committed()) != FromProto(m.committed()) ||
        after.models(0).commits() != m.commits()) {
      continue;
    }
    if (!compared.ok()) {
      return Annotate(compared.status(),
                      "reading the receiver's directory (is it on this machine?)");
    }
    return Report(o, model, m, *compared);
  }
  return Errorf(StatusCode::kAborted,
                "{}: new versions kept arriving while it was compared; `deltawire pause` it first",
                model);
}

StatusOr<Exit> Verify(const VerifyOptions& o) {
  DW_ASSIGN_OR_RETURN(Receiver receiver, DialReceiver(o.receiver, o.timeout()));
  DW_ASSIGN_OR_RETURN(const std::string model, ChooseModel(receiver, o.model, o.timeout()));
  if (o.against.empty()) return VerifyDigests(o, receiver, model);
  if (o.repair || o.engines) {
    return UsageError("--repair and --engines do not go with --against");
  }
  return VerifyAgainst(o, receiver, model);
}

}  // namespace

void DeclareVerify(CLI::App& app, Run* run) {
  auto o = std::make_shared<VerifyOptions>();
  CLI::App* sub = app.add_subcommand(
      "verify", "Check a receiver's weights: by their digests, or byte by byte against DIR");
  sub->add_flag("--repair", o->repair, "Fetch corrupt chunks whole");
  sub->add_flag("--engines", o->engines,
                "Also have its engines compare their memory with what they serve");
  AddDirectory(*sub, "--against", o->against,
               "Compare the receiver's directory (on this machine) with this HF directory");
  o->AddReceiver(*sub);
  o->AddModel(*sub, "the only one there is");
  o->AddTimeout(*sub, 0, "Give up after this long; 0: never");
  o->AddJson(*sub);
  sub->callback([o, run] { *run = [o] { return Verify(*o); }; });
}

}  // namespace deltawire::cli
