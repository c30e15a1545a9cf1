#include "common/base/similar_word.h"

#include <algorithm>

namespace deltawire {
namespace {

constexpr size_t kLettersPerError = 3;
constexpr size_t kLeastBeginning = 3;  // shortest abbreviation, in letters

}  // namespace

size_t TypingErrors(std::string_view a, std::string_view b) {
  // Rows of the edit distance table: errors between the first i letters of `a` and the first j of
  // `b`.
  std::vector<size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string SimilarWord(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  size_t fewest = std::max<size_t>(1, word.size() / kLettersPerError) + 1;
  for (const std::string& one : known) {
    const size_t errors = TypingErrors(word, one);
    if (errors >= fewest) continue;
    fewest = errors;
    best = one;
  }
  if (!best.empty() || word.size() < kLeastBeginning) return best;
  const auto begins = std::ranges::find_if(
      known, [&](const std::string& one) { return std::string_view(one).starts_with(word); });
  return begins == known.end() ? "" : *begins;
}

std::string DidYouMean(std::string_view word, const std::vector<std::string>& known) {
  const std::string similar = SimilarWord(word, known);
  return similar.empty() ? "" : "; did you mean \"" + similar + "\"?";
}

}  // namespace deltawire
