/* direct SENDER RECEIVER: what an orchestrator does, in plain C, with the two control addresses of
 * a pair that holds version 3. Exits with 0 when all went as it must. */
#include <deltawire/deltawire_export.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                                                        \
  do {                                                                            \
    if (!(condition)) {                                                           \
      fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, dw_last_error()); \
      exit(1);                                                                    \
    }                                                                             \
  } while (0)

static dw_control* open_control(int daemon, const char* address) {
  dw_control_options options;
  dw_control* control = NULL;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.daemon = daemon;
  options.address = address;
  REQUIRE(dw_control_open(&options, &control) == DW_OK);
  return control;
}

/* The first answer has `part` in it. */
static dw_control_call* begin(dw_control* control, const char* method, const char* request,
                              const char* part) {
  dw_control_call* call = NULL;
  const char* answer = NULL;
  REQUIRE(dw_control_start(control, method, request, 0, &call) == DW_OK);
  REQUIRE(dw_control_next(call, DW_WAIT_FOREVER, &answer) == DW_OK && answer != NULL);
  REQUIRE(strstr(answer, part) != NULL);
  return call;
}

static void ask(dw_control* control, const char* method, const char* request, const char* part) {
  dw_control_call* call = begin(control, method, request, part);
  const char* answer = "";
  while (answer != NULL) REQUIRE(dw_control_next(call, DW_WAIT_FOREVER, &answer) == DW_OK);
  dw_control_call_destroy(call);
}

int main(int argc, char** argv) {
  dw_control_options wrong;
  dw_control *sender, *receiver, *none = NULL;
  dw_control_call* call = NULL;
  const char* answer = NULL;
  if (argc != 3) return 2;
  sender = open_control(DW_DAEMON_SENDER, argv[1]);
  receiver = open_control(DW_DAEMON_RECEIVER, argv[2]);
  ask(sender, "GetStatus", NULL, "\"model\":\"m\"");
  ask(sender, "WaitCommitted", "{\"model\": \"m\", \"version\": 3}", "\"attached\":");
  ask(receiver, "Verify", "{\"model\": \"m\"}", "\"bad_chunks\":0,");

  call = begin(receiver, "WatchVersions", "{\"model\": \"m\"}", "\"version\":3,");
  REQUIRE(dw_control_next(call, 0, &answer) == DW_OK && answer != NULL && *answer == '\0');
  dw_control_close(receiver); /* the call goes on */
  dw_control_cancel(call);
  REQUIRE(dw_control_next(call, DW_WAIT_FOREVER, &answer) == DW_CANCELLED);
  dw_control_call_destroy(call);

  REQUIRE(dw_control_start(sender, "Rollback", "{\"model\": \"other\", \"version\": 1}", 10000,
                           &call) == DW_OK);
  REQUIRE(dw_control_next(call, DW_WAIT_FOREVER, &answer) == DW_NOT_FOUND);
  REQUIRE(strstr(dw_last_error(), "other") != NULL);
  dw_control_call_destroy(call);
  REQUIRE(dw_control_start(sender, "Rolback", NULL, 0, &call) == DW_INVALID_ARGUMENT);
  REQUIRE(strstr(dw_last_error(), "Rollback") != NULL);
  memset(&wrong, 0, sizeof wrong);
  wrong.struct_size = sizeof wrong;
  wrong.address = argv[1];
  REQUIRE(dw_control_open(&wrong, &none) == DW_INVALID_ARGUMENT && none == NULL);
  dw_control_call_destroy(NULL);
  dw_control_close(sender);
  return 0;
}
