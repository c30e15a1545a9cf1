#include "kernels/cpu/changes.h"

#include "kernels/element_width.h"
#include "kernels/payload.h"

namespace deltawire::kernels {

DecodeStatus VisitChanges(const BlockOps& ops, Bytes payload, size_t raw_bytes, unsigned width,
                          MutableBytes scratch, ChangeVisitor visit, void* context) {
  if (!IsElementWidth(width)) return DecodeStatus::kMalformed;
  if (scratch.size() < kChangesScratchBytes) return DecodeStatus::kTooLarge;
  PayloadView view;
  const DecodeStatus s = PayloadView::Parse(payload, raw_bytes, width, &view);
  if (s != DecodeStatus::kOk) return s;
  auto* differences = reinterpret_cast<uint64_t*>(scratch.data());
  auto* at = reinterpret_cast<uint16_t*>(differences + kBlockElements);
  BlockCursor cursor(view);
  for (size_t b = 0; b < view.blocks(); ++b, cursor.Next()) {
    const BlockRow& row = cursor.row();
    if (row.changed == 0) continue;
    if (!ops.unpack(row, cursor.stream(), view.end(), view.BlockElements(b), width, at,
                    differences)) {
      return DecodeStatus::kMalformed;
    }
    visit(context, {.first = b * kBlockElements,
                    .at = {at, row.changed},
                    .differences = {differences, row.changed}});
  }
  return DecodeStatus::kOk;
}

}  // namespace deltawire::kernels
