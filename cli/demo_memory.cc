#include "cli/demo_memory.h"

#include <linux/magic.h>
#include <sys/statfs.h>

#include <string>

#include "common/base/human.h"
#include "common/base/machine.h"
#include "common/layout/layout.h"

namespace deltawire::cli {
namespace {

uint64_t ModelBytes(const synth::ModelShape& shape) {
  const auto layout = Layout::Create(synth::MakeTensors(shape));
  return layout.ok() ? layout->total_bytes() : 0;
}

struct Room {
  uint64_t memory = 0;
  uint64_t files = 0;
  bool files_are_memory = false;
};

Room RoomIn(const std::filesystem::path& dir) {
  Room room;
  room.memory = AvailableMemory().value_or(0);
  struct statfs fs {};
  if (statfs(dir.c_str(), &fs) == 0) {
    room.files = fs.f_bavail * static_cast<uint64_t>(fs.f_bsize);
    room.files_are_memory = fs.f_type == TMPFS_MAGIC;
  }
  return room;
}

bool Fits(const DemoNeed& need, const Room& room) {
  const uint64_t memory = need.memory + (room.files_are_memory ? need.files : 0);
  return memory <= room.memory && need.files <= room.files;
}

}  // namespace

DemoNeed NeedOf(const synth::ModelShape& shape, uint32_t receivers) {
  constexpr uint64_t kTraceBytesPerElement = 10;
  constexpr uint64_t kProcesses = uint64_t{150} << 20;  // three processes' own memory
  const uint64_t model = ModelBytes(shape);
  const uint64_t elements = model / 2;  // bf16
  DemoNeed need;
  need.files = model * (1 + 2 + receivers);
  // A fifth of the model for the delta log.
  need.memory = kTraceBytesPerElement * elements + model / 5 + kProcesses;
  return need;
}

Status CheckFits(const synth::ModelShape& shape, uint32_t receivers,
                 const std::filesystem::path& dir) {
  const Room room = RoomIn(dir);
  const DemoNeed need = NeedOf(shape, receivers);
  if (Fits(need, room)) return absl::OkStatus();
  std::string advice = "close something else";
  for (const synth::ModelShape& other : synth::AllModelShapes()) {  // by rising size
    if (Fits(NeedOf(other, receivers), room)) {
      advice = fmt::format("try --size {}", other.name);
    }
  }
  return Errorf(StatusCode::kResourceExhausted,
                "--size {} needs {} of memory and {} in {}; there are {} and {}: {}", shape.name,
                HumanBytes(need.memory + (room.files_are_memory ? need.files : 0)),
                HumanBytes(need.files), dir.string(), HumanBytes(room.memory),
                HumanBytes(room.files), advice);
}

}  // namespace deltawire::cli
