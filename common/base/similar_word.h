// Suggestions for mistyped words: commands, options, keys of files. Pure functions. Threads: any.
// Cost: quadratic in a word's length, for each known word.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deltawire {

/// The number of typing errors between two words: letters added, left out, replaced, or two
/// neighbors swapped.
size_t TypingErrors(std::string_view a, std::string_view b);

/// The known word that `word` most likely stands for, or "". One error in three letters is the
/// limit; a word of which `word` is the beginning counts as similar, too.
std::string SimilarWord(std::string_view word, const std::vector<std::string>& known);

/// `; did you mean "status"?`, or "" if no known word is similar.
std::string DidYouMean(std::string_view word, const std::vector<std::string>& known);

}  // namespace deltawire
