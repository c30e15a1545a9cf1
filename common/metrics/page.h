// One HTML document of headings, facts, tables and charts: no script, nothing to fetch, light or
// dark as the reader's system is. All text is escaped, since names of models, tensors and receivers
// come from peers. Owner: whoever makes it, for one request. Threads: one. Cost: the text.
// Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/identity.h"

namespace deltawire::metrics {

/// The Content-Security-Policy header's value: it allows the page's own style, images that are
/// `data:` URLs, and nothing else.
extern const char* const kPagePolicy;

/// `text` as HTML's text or attribute value shows it. Bytes that are no UTF-8, and control
/// characters, become U+FFFD.
std::string EscapeHtml(std::string_view text);

/// `text` is what a reader sees; `value` is the exact value for programs ("": the same as `text`).
struct Cell {
  enum class Look : uint8_t { kWord, kNumber, kSentence };
  std::string text, value = {};
  Look look = Look::kWord;

  static Cell Word(std::string_view text) { return {std::string(text)}; }
  /// Is broken into lines where it is long.
  static Cell Sentence(std::string_view text) { return {std::string(text), {}, Look::kSentence}; }
  static Cell Count(uint64_t count);
  static Cell Bytes(uint64_t bytes);
  static Cell Rate(double bytes_per_s);
  static Cell Seconds(double seconds);
  /// `part` of `all`, in per cent.
  static Cell Share(double part, double all);
  /// "-" for an empty identity.
  static Cell Version(const Identity& id);
  static Cell Trace(const Identity& id);
  /// A value that is not known, or has no meaning here.
  static Cell None() { return {"-", {}, Look::kNumber}; }
};

using Row = std::vector<Cell>;

/// Collects what the line at the top of a page says: whether all is well, and if not, what is not.
class Verdict {
 public:
  /// Something is as it should be, e.g. "policy is at version 7".
  void AddGood(std::string what) { good_.push_back(std::move(what)); }
  /// Something ends by itself, e.g. a version that is on its way.
  void AddWait(std::string what) { waits_.push_back(std::move(what)); }
  /// Something needs a person.
  void AddFailure(std::string what) { failures_.push_back(std::move(what)); }

  /// The line's class in the style: "good", "wait" or "bad".
  std::string_view look() const;
  /// "All is well: ...", "Waiting: ..." or "Needs attention: ...".
  std::string Text() const;

 private:
  std::vector<std::string> good_, waits_, failures_;
};

class Page {
 public:
  /// `uptime_seconds`: of this daemon.
  Page(std::string_view title, double uptime_seconds, const Verdict& verdict);

  void Heading(std::string_view text);
  void Note(std::string_view text);
  /// What is most asked for, each with its name, in large letters.
  void Facts(std::string_view id, const std::vector<std::pair<std::string, Cell>>& facts);
  /// REQUIRES: each row has a cell per title, of one look within a column; `id` is unique.
  void Table(std::string_view id, const std::vector<std::string>& titles,
             const std::vector<Row>& rows);
  /// Figures of chart.h side by side, if there is room. Empty ones are left out.
  void Charts(const std::vector<std::string>& figures);

  /// The whole document.
  std::string Finish();

 private:
  std::string html_;
};

}  // namespace deltawire::metrics
