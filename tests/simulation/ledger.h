// A record of what trainers offered and senders published, with which every copy is compared.
// Owner: the world. Threads: one. Cost: a whole (tiny) model per version. Errors: none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/layout/chunks.h"
#include "common/layout/layout.h"
#include "kernels/digest_key.h"
#include "tests/simulation/random.h"

namespace deltawire::simulation {

using Content = std::vector<std::byte>;

/// The bytes of a model as of some time: a layout, and its chunks.
struct Shape {
  explicit Shape(Layout of);
  uint64_t Root(Bytes content) const;

  const Layout layout;
  const ChunkTable chunks;
  const kernels::DigestKey key;
};

class Ledger {
 public:
  explicit Ledger(Layout layout);

  /// From now on versions are offered in this layout.
  void Change(Layout layout);
  uint64_t layouts() const { return layouts_; }  ///< how many there have been
  /// Records that a trainer is about to write these bytes as this version.
  void Offer(uint64_t version, const Content& content);
  /// Versions that have exactly these bytes; null when nobody offered them.
  const std::vector<uint64_t>* Find(Bytes content) const;
  /// Whether these bytes were offered, but for some around the one at `offset`.
  bool FindBut(Bytes content, uint64_t offset) const;
  /// For a failure's report: the offered versions from which each tensor of `content` comes.
  std::string Explain(Bytes content) const;
  /// Whether a state with this root was offered under this number.
  bool IsOffered(uint64_t version, uint64_t root) const {
    const auto it = roots_.find(root);
    return it != roots_.end() && it->second.contains(version);
  }
  /// Whether these bytes were offered, and are a state with this root.
  bool HasRoot(Bytes content, uint64_t root) const;

  const Layout& layout() const { return shape_->layout; }
  const ChunkTable& chunks() const { return shape_->chunks; }

 private:
  struct Entry {
    Content content;
    std::vector<uint64_t> versions;
    std::shared_ptr<const Shape> shape;
  };
  std::shared_ptr<const Shape> shape_;
  uint64_t layouts_ = 0;
  std::map<uint64_t, Entry> entries_;             // by XXH3
  std::map<uint64_t, std::set<uint64_t>> roots_;  // versions by root
};

/// The data section of a safetensors file; empty when it is none.
Bytes DataOf(Bytes file);
/// A few small tensors of several types; one in three has more than one chunk.
Layout DrawLayout(Random& random);
Content DrawContent(const Layout& layout, Random& random);
/// `before` with some elements of some tensors changed.
Content Train(const Layout& layout, const Content& before, Random& random);

}  // namespace deltawire::simulation
