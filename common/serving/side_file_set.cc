#include "common/serving/side_file_set.h"

#include <algorithm>

#include "common/base/human.h"

namespace deltawire {

StatusOr<std::shared_ptr<const SideFileSet>> MakeSideFileSet(std::vector<SideFile> files) {
  std::sort(files.begin(), files.end(),
            [](const SideFile& a, const SideFile& b) { return a.name < b.name; });
  uint64_t total = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const SideFile& f = files[i];
    if (!IsSideFileName(f.name) || (i > 0 && files[i - 1].name == f.name)) {
      return Errorf(StatusCode::kInvalidArgument,
                    "side file \"{}\": the name must be a plain file name, no weight file, and "
                    "occur once",
                    f.name);
    }
    total += f.content.size();
    if (f.content.size() > kMaxSideFileBytes || total > kMaxSideFilesTotal) {
      return Errorf(
          StatusCode::kInvalidArgument,
          "side file \"{}\" is too large: with it the side files have {}; the limit is {} for "
          "one, {} for all",
          f.name, HumanBytes(total), HumanBytes(kMaxSideFileBytes), HumanBytes(kMaxSideFilesTotal));
    }
  }
  auto set = std::make_shared<SideFileSet>();
  set->hash = SideFilesHash(files);
  set->files = std::move(files);
  return set;
}

}  // namespace deltawire
