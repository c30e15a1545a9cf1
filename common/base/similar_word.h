// Suggestions for mistyped words: commands, options, keys of files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deltawire {

/// Returns the edit distance of two words: letters added, omitted or replaced, or two neighbors
/// swapped.
size_t TypingErrors(std::string_view a, std::string_view b);

/// Returns the known word that `word` most likely stands for, or "". The limit is one error in
/// three letters. An abbreviation counts as similar too.
std::string SimilarWord(std::string_view word, const std::vector<std::string>& known);

/// Returns `; did you mean "status"?`, or "" if no known word is similar.
std::string DidYouMean(std::string_view word, const std::vector<std::string>& known);

}  // namespace deltawire
