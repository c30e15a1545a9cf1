#include "common/config/toml_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

namespace deltawire {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

class Reader {
 public:
  Reader(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  StatusOr<std::vector<TomlItem>> Read() {
    std::vector<TomlItem> items;
    for (SkipLines(); !AtEnd(); SkipLines()) {
      TomlItem item;
      item.line = line_;
      DW_RETURN_IF_ERROR(ReadKey(item.key));
      for (const TomlItem& other : items) {
        if (other.key == item.key) {
          return Error("{} is set again; line {} already sets it", item.key, other.line);
        }
      }
      SkipBlanks();
      if (!Take('=')) return Error("expected '=' after {}", item.key);
      SkipBlanks();
      DW_RETURN_IF_ERROR(ReadValue(item));
      SkipBlanks();
      SkipComment();
      if (!AtEnd() && Peek() != '\n') return Error("text after the value of {}", item.key);
      items.push_back(std::move(item));
    }
    return items;
  }

 private:
  template <typename... Args>
  Status Error(fmt::format_string<Args...> format, Args&&... args) const {
    return Errorf(StatusCode::kInvalidArgument, "{}:{}: {}", file_, line_,
                  fmt::format(format, std::forward<Args>(args)...));
  }

  bool AtEnd() const { return at_ == text_.size(); }
  char Peek() const { return AtEnd() ? '\0' : text_[at_]; }
  bool Take(char c) {
    if (AtEnd() || text_[at_] != c) return false;
    line_ += c == '\n';
    ++at_;
    return true;
  }
  void SkipBlanks() {
    while (Take(' ') || Take('\t')) {
    }
    if (Peek() == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') ++at_;
  }
  void SkipComment() {
    if (Peek() != '#') return;
    at_ = std::min(text_.find('\n', at_), text_.size());
  }
  void SkipLines() {
    do {
      SkipBlanks();
      SkipComment();
    } while (Take('\n'));
  }

  static bool IsBare(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
  }
  std::string_view TakeBare() {
    const size_t start = at_;
    while (!AtEnd() && IsBare(Peek())) ++at_;
    return text_.substr(start, at_ - start);
  }

  Status ReadKey(std::string& key) {
    if (Peek() == '[') return Error("there are no sections in this file; remove the [...] line");
    key = TakeBare();
    if (key.empty()) return Error("expected an option's name");
    return {};
  }

  Status ReadValue(TomlItem& item) {
    if (Peek() == '"' || Peek() == '\'') {
      return ReadString(item.values.emplace_back());
    }
    if (Take('[')) return ReadArray(item);
    const bool plus = Take('+');
    std::string word(TakeBare());
    if (!plus && (word == "true" || word == "false")) {
      item.kind = TomlItem::Kind::kBoolean;
      item.values = {std::move(word)};
      return {};
    }
    return ReadInteger(item, std::move(word));
  }

  Status ReadInteger(TomlItem& item, std::string word) {
    std::string digits;
    bool after_digit = false;
    for (size_t i = 0; i < word.size(); ++i) {
      const char c = word[i];
      const bool is_digit = c >= '0' && c <= '9';
      const bool separates = c == '_' && after_digit && i + 1 < word.size();
      if (!is_digit && !separates && !(c == '-' && i == 0)) digits.clear(), i = word.size();
      if (is_digit || (c == '-' && i == 0)) digits += c;
      after_digit = is_digit;
    }
    if (digits.empty() || digits == "-") {
      return Error(
          "the value of {} is not a \"string\", a whole number, true, false or "
          "[\"a\", \"list\"]{}",
          item.key, word.empty() ? "" : fmt::format("; write \"{}\"?", word));
    }
    item.kind = TomlItem::Kind::kInteger;
    item.values = {std::move(digits)};
    return {};
  }

  Status ReadString(std::string& out) {
    const char quote = Peek();
    Take(quote);
    if (text_.substr(at_).starts_with(std::string(2, quote))) {
      return Error("strings of several lines are not supported here");
    }
    while (!Take(quote)) {
      const char c = Peek();
      if (AtEnd() || c == '\n') return Error("a string lacks its closing {}", quote);
      if (static_cast<unsigned char>(c) < 0x20 && c != '\t') {
        return Error("a control character in a string");
      }
      ++at_;
      if (c != '\\' || quote == '\'') {
        out += c;
        continue;
      }
      const char escaped = Peek();
      if (escaped != '\\' && escaped != '"') {
        return Error(
            "in a string only \\\\ and \\\" are escapes here; 'single quotes' take "
            "backslashes as they are");
      }
      out += escaped;
      ++at_;
    }
    return {};
  }

  Status ReadArray(TomlItem& item) {
    item.kind = TomlItem::Kind::kStrings;
    for (;;) {
      SkipLines();
      if (Take(']')) return {};
      if (Peek() != '"' && Peek() != '\'') {
        return Error("expected a \"string\" or ']' in the list of {}", item.key);
      }
      DW_RETURN_IF_ERROR(ReadString(item.values.emplace_back()));
      SkipLines();
      if (!Take(',') && Peek() != ']') {
        return Error("expected ',' or ']' in the list of {}", item.key);
      }
    }
  }

  std::string_view text_;
  std::string_view file_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

StatusOr<std::vector<TomlItem>> ParseToml(std::string_view text, std::string_view file) {
  return Reader(text, file).Read();
}

StatusOr<std::vector<TomlItem>> ReadTomlFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoError(fmt::format("read {}", path));
  std::string text(kMaxFileBytes + 1, '\0');
  size_t size = 0;
  ssize_t n = 1;
  while (n > 0 && size < text.size()) {
    n = ::read(fd, text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR)
      n = 1;
    else if (n > 0)
      size += static_cast<size_t>(n);
  }
  const int err = errno;
  ::close(fd);
  if (n < 0) return ErrnoError(fmt::format("read {}", path), err);
  if (size > kMaxFileBytes) {
    return Errorf(StatusCode::kInvalidArgument, "{} is larger than an option file may be ({} KiB)",
                  path, kMaxFileBytes >> 10);
  }
  return ParseToml(std::string_view(text).substr(0, size), path);
}

}  // namespace deltawire
