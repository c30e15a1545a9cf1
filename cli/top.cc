// The top command: a live view of senders, receivers and engines. This file has the keys and the
// terminal; top_screen.cc has the picture. ncurses comes last, because it defines macros with
// common names.
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/connect.h"
#include "cli/output.h"
#include "cli/top_screen.h"
#include "common/base/sync.h"

#define NCURSES_NOMACROS 1
#include <curses.h>

#include <clocale>

namespace deltawire::cli {
namespace {

constexpr int kKeyWaitMs = 100;  // the pause between two looks for news while no key is pressed
constexpr int kCtrlC = 3;
constexpr size_t kPage = 10;

struct TopOptions : Common {
  std::vector<std::string> senders, receivers;
  double interval = 1;
};

SenderAnswer AskOneSender(const std::string& address, std::chrono::milliseconds timeout) {
  SenderAnswer answer{.address = address, .status = absl::UnknownError(""), .attached = {}};
  auto sender = DialSender(address, timeout);
  answer.status = sender.ok() ? GetStatus(*sender, "", timeout)
                              : StatusOr<v1::SenderStatusResponse>(sender.status());
  if (!answer.status.ok()) return answer;
  auto attached = ListReceivers(*sender, "", timeout);
  if (attached.ok()) {
    answer.attached = std::move(*attached);
  } else {
    answer.status = attached.status();
  }
  return answer;
}

ReceiverAnswer AskOneReceiver(const std::string& address, std::chrono::milliseconds timeout) {
  ReceiverAnswer answer{.address = address, .status = absl::UnknownError("")};
  auto receiver = DialReceiver(address, timeout);
  answer.status = receiver.ok() ? GetStatus(*receiver, "", timeout)
                                : StatusOr<v1::ReceiverStatusResponse>(receiver.status());
  return answer;
}

// Asks all daemons at the same time, so that one that does not answer delays no other.
TopLook Ask(const TopOptions& o) {
  const auto all = [&](const auto& named, const char* otherwise, auto ask) {
    std::vector<std::future<decltype(ask(std::string(), o.timeout()))>> asked;
    const std::vector<std::string> addresses =
        named.empty() ? std::vector<std::string>{otherwise} : named;
    for (const std::string& address : addresses) {
      asked.push_back(std::async(std::launch::async, ask, address, o.timeout()));
    }
    std::vector<decltype(ask(std::string(), o.timeout()))> answers;
    for (auto& future : asked) answers.push_back(future.get());
    return answers;
  };
  TopLook look;
  look.senders = all(o.senders, o.sender.c_str(), AskOneSender);
  look.receivers = all(o.receivers, o.receiver.c_str(), AskOneReceiver);
  // If no daemon was named, one that answers is enough.
  const bool sender = look.senders.front().status.ok();
  const bool receiver = look.receivers.front().status.ok();
  if (o.receivers.empty() && !receiver && (sender || !o.senders.empty())) look.receivers.clear();
  if (o.senders.empty() && !sender && (receiver || !o.receivers.empty())) look.senders.clear();
  look.at = std::chrono::steady_clock::now();
  look.unix_nanos = UnixNanos();
  return look;
}

/// A thread that asks the daemons, so that keys work while a daemon does not answer.
class Looker {
 public:
  explicit Looker(const TopOptions& o) : options_(o), thread_([this] { Run(); }) {}
  ~Looker() {
    {
      std::lock_guard lock(mu_);
      stopping_ = true;
      cv_.notify_all();
    }
    thread_.join();
  }
  Looker(const Looker&) = delete;
  Looker& operator=(const Looker&) = delete;

  /// Returns the last look and the one before it. False if no look is newer than number `*seen`.
  bool News(uint64_t* seen, std::shared_ptr<const TopLook>* now,
            std::shared_ptr<const TopLook>* before) {
    std::lock_guard lock(mu_);
    if (*seen == looks_) return false;
    *seen = looks_;
    *now = now_;
    *before = before_;
    return true;
  }

 private:
  void Run() {
    std::unique_lock lock(mu_);
    while (!stopping_) {
      lock.unlock();
      auto look = std::make_shared<const TopLook>(Ask(options_));
      lock.lock();
      before_ = std::exchange(now_, std::move(look));
      ++looks_;
      cv_.wait_for(lock, std::chrono::duration<double>(options_.interval),
                   [this] { return stopping_; });
    }
  }

  const TopOptions& options_;
  std::mutex mu_;
  std::condition_variable cv_;
  bool stopping_ = false;
  uint64_t looks_ = 0;
  std::shared_ptr<const TopLook> now_, before_;
  std::thread thread_;
};

std::atomic<bool> told_to_end{false};

/// The terminal under ncurses' control. The destructor restores it.
class Terminal {
 public:
  static StatusOr<std::unique_ptr<Terminal>> Open() {
    if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0) {
      return UsageError(
          "needs a terminal; without one use `deltawire status` or `deltawire watch`");
    }
    std::setlocale(LC_ALL, "");
    SCREEN* const screen = newterm(nullptr, stdout, stdin);
    if (screen == nullptr) {
      return UsageError("the kind of this terminal is unknown; set TERM, for example to xterm");
    }
    return std::unique_ptr<Terminal>(new Terminal(screen));
  }
  ~Terminal() {
    endwin();
    delscreen(screen_);
  }

  void Draw(const std::vector<TopLine>& lines) {
    erase();
    for (size_t i = 0; i < lines.size(); ++i) {
      const attr_t attributes = Attributes(lines[i].style);
      attron(attributes);
      mvaddnstr(static_cast<int>(i), 0, lines[i].text.data(),
                static_cast<int>(lines[i].text.size()));
      attroff(attributes);
    }
    refresh();
  }
  size_t rows() const { return static_cast<size_t>(getmaxy(stdscr)); }
  size_t columns() const { return static_cast<size_t>(getmaxx(stdscr)); }
  /// Returns ERR if no key was pressed for kKeyWaitMs.
  int Key() { return getch(); }

 private:
  explicit Terminal(SCREEN* screen) : screen_(screen) {
    raw();  // Ctrl-C is a key, so that the terminal is restored before the end
    noecho();
    keypad(stdscr, TRUE);
    timeout(kKeyWaitMs);
    curs_set(0);
    const char* const no_color = std::getenv("NO_COLOR");
    if ((no_color == nullptr || *no_color == '\0') && has_colors()) {
      start_color();
      use_default_colors();
      init_pair(kWarningColors, COLOR_RED, -1);
      colors_ = true;
    }
  }
  attr_t Attributes(TopStyle style) const {
    switch (style) {
      case TopStyle::kTitle:
        return A_REVERSE;
      case TopStyle::kHeading:
        return A_BOLD;
      case TopStyle::kWarning:
        return A_BOLD | (colors_ ? COLOR_PAIR(kWarningColors) : A_NORMAL);
      case TopStyle::kPlain:
        return A_NORMAL;
    }
    return A_NORMAL;
  }

  static constexpr short kWarningColors = 1;
  SCREEN* const screen_;
  bool colors_ = false;
};

std::string NextModel(const TopLook& look, const std::string& shown) {
  const std::vector<std::string> models = TopModels(look);
  if (models.empty()) return "";
  const auto at = std::ranges::find(models, shown.empty() ? models.front() : shown);
  return at == models.end() || std::next(at) == models.end() ? models.front() : *std::next(at);
}

// Changes the view as the key says. Returns false if the user leaves.
bool Obey(int key, const TopLook* look, TopView& view) {
  const auto up = [&](size_t by) { view.scroll -= std::min(view.scroll, by); };
  switch (key) {
    case 'q':
    case kCtrlC:
      return false;
    case 'm':
      if (look != nullptr) view.model = NextModel(*look, view.model);
      view.scroll = 0;
      break;
    case 's':
      view.order = static_cast<TopOrder>((static_cast<int>(view.order) + 1) % kTopOrders);
      break;
    case 'p':
    case ' ':
      view.paused = !view.paused;
      break;
    case 'h':
    case '?':
      view.help = !view.help;
      break;
    case KEY_UP:
    case 'k':
      up(1);
      break;
    case KEY_PPAGE:
      up(kPage);
      break;
    case KEY_DOWN:
    case 'j':
      view.scroll += 1;
      break;
    case KEY_NPAGE:
      view.scroll += kPage;
      break;
    case KEY_HOME:
      view.scroll = 0;
      break;
    default:
      break;
  }
  return true;
}

StatusOr<Exit> Top(const TopOptions& o) {
  DW_ASSIGN_OR_RETURN(std::unique_ptr<Terminal> terminal, Terminal::Open());
  for (const int signal : {SIGTERM, SIGHUP}) {
    std::signal(signal, [](int) { told_to_end = true; });
  }
  Looker looker(o);
  TopView view{.model = o.model, .interval = o.interval};
  uint64_t seen = 0;
  std::shared_ptr<const TopLook> now, before;
  while (!told_to_end) {
    const int key = terminal->Key();
    const bool news = !view.paused && looker.News(&seen, &now, &before);
    if (key != ERR && !Obey(key, now.get(), view)) break;
    if (now == nullptr || (key == ERR && !news)) continue;
    terminal->Draw(TopScreen(*now, before.get(), view, terminal->rows(), terminal->columns()));
  }
  terminal.reset();
  // The looker may wait for seconds for a silent daemon, and it has nothing to clean up.
  std::fflush(nullptr);
  std::_Exit(static_cast<int>(Exit::kOk));
}

}  // namespace

void DeclareTop(CLI::App& app, Run* run) {
  auto o = std::make_shared<TopOptions>();
  CLI::App* sub =
      app.add_subcommand("top", "Show senders, receivers and engines, refreshed every second");
  Common::AddCredentials(*sub);
  sub->add_option("--sender", o->senders, "Senders' control addresses")
      ->type_name("HOST:PORT")
      ->default_str(o->sender);
  sub->add_option("--receiver", o->receivers, "Receivers' control addresses, for their engines")
      ->type_name("HOST:PORT")
      ->default_str(o->receiver);
  AddSeconds(*sub, "--interval", o->interval, "Seconds between updates", 0.05, 3600);
  o->AddModel(*sub, "the first; the key m shows the next");
  o->AddTimeout(*sub, 2, "Wait this long for an answer", Common::kLeastTimeout);
  sub->callback([o, run] { *run = [o] { return Top(*o); }; });
}

}  // namespace deltawire::cli
