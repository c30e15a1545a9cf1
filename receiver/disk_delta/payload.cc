#include "receiver/disk_delta/payload.h"

#include <zstd.h>

#include <algorithm>
#include <memory>
#include <string>

namespace deltawire::receiver {
namespace {

constexpr size_t kPieceBytes = 1 << 20;  // what is encoded at once: it stays in a cache
constexpr int kLevel = 1;                // zstd's; the format's other writers use it too

/// One zstd frame that states its content's size.
class Frame {
 public:
  explicit Frame(uint64_t bytes) : context_(ZSTD_createCCtx(), &ZSTD_freeCCtx) {
    Note(ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, kLevel));
    Note(ZSTD_CCtx_setPledgedSrcSize(context_.get(), bytes));
  }
  void Add(Bytes piece) { Step(piece, ZSTD_e_continue); }
  StatusOr<std::vector<std::byte>> End() {
    Step({}, ZSTD_e_end);
    if (!error_.empty()) return absl::ResourceExhaustedError("zstd: " + error_);
    return std::move(out_);
  }

 private:
  void Note(size_t result) {
    if (ZSTD_isError(result) != 0U && error_.empty()) error_ = ZSTD_getErrorName(result);
  }
  void Step(Bytes piece, ZSTD_EndDirective directive) {
    ZSTD_inBuffer in{piece.data(), piece.size(), 0};
    while (error_.empty()) {
      const size_t used = out_.size();
      out_.resize(used + ZSTD_CStreamOutSize());
      ZSTD_outBuffer out{out_.data() + used, out_.size() - used, 0};
      const size_t left = ZSTD_compressStream2(context_.get(), &out, &in, directive);
      out_.resize(used + out.pos);
      Note(left);
      if (directive == ZSTD_e_end ? left == 0 : in.pos == in.size) return;
    }
  }

  const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context_;
  std::vector<std::byte> out_;
  std::string error_;
};

}  // namespace

StatusOr<std::vector<std::byte>> EncodeXor(Bytes was, Bytes is) {
  Frame frame(is.size());
  std::vector<std::byte> piece(std::min(is.size(), kPieceBytes));
  for (size_t at = 0; at < is.size(); at += piece.size()) {
    const size_t n = std::min(piece.size(), is.size() - at);
    for (size_t i = 0; i < n; ++i) piece[i] = was[at + i] ^ is[at + i];
    frame.Add({piece.data(), n});
  }
  return frame.End();
}

StatusOr<std::vector<std::byte>> EncodeOverwrite(Bytes was, Bytes is) {
  uint32_t count = 0;
  for (size_t i = 0; i < is.size(); ++i) count += was[i] != is[i] ? 1 : 0;
  Frame frame(uint64_t{5} * count + 4);
  std::vector<std::byte> piece(sizeof count);
  StoreLe(piece.data(), count);
  const auto flush = [&](size_t at_least) {
    if (piece.size() < at_least) return;
    frame.Add(piece);
    piece.clear();
  };
  for (size_t i = 0; i < is.size(); ++i) {
    if (was[i] == is[i]) continue;
    piece.resize(piece.size() + sizeof count);
    StoreLe(piece.data() + piece.size() - sizeof count, static_cast<uint32_t>(i));
    flush(kPieceBytes);
  }
  for (size_t i = 0; i < is.size(); ++i) {
    if (was[i] == is[i]) continue;
    piece.push_back(is[i]);
    flush(kPieceBytes);
  }
  flush(0);
  return frame.End();
}

}  // namespace deltawire::receiver
