/* JSON for plugins in C: values, the fields of a request, and text to write. `corral.h` includes it. */
#ifndef CORRAL_JSON_H
#define CORRAL_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { CORRAL_NULL, CORRAL_BOOLEAN, CORRAL_NUMBER, CORRAL_STRING, CORRAL_ARRAY, CORRAL_OBJECT } corral_json_type;

typedef struct corral_json {
  corral_json_type type;
  bool boolean;
  double number;
  /* UTF-8, ending with a NUL byte. */
  const char *string;
  /* The name of a member of an object. */
  const char *name;
  /* The number of items of an array or object; their list. */
  size_t length;
  const struct corral_json *items, *next;
  /* The value as it was written. */
  const char *source;
  size_t source_length;
} corral_json;

/* Reads a value. Returns NULL, and the position and kind of the mistake in `error`, if the text is not JSON, has a NUL byte, is
 * deeper than 64 arrays or has more than 16,384 values. */
const corral_json *corral_parse(const char *text, const char **error, size_t *position);

/* The member of an object; NULL if it is not there. */
const corral_json *corral_member(const corral_json *object, const char *name);

/* Fields of a request. A field may be left out or null, if `initial` is not CORRAL_REQUIRED. A value of another type or out of
 * its range is an error with status 400, the field's name and what was expected; then the result is some value. */

extern const char CORRAL_REQUIRED[];
const char *corral_field_string(const corral_json *object, const char *name, const char *initial);
int64_t corral_field_integer(const corral_json *object, const char *name, int64_t initial, int64_t least, int64_t most);
double corral_field_number(const corral_json *object, const char *name, double initial, double least, double most);
bool corral_field_boolean(const corral_json *object, const char *name, bool initial);
/* Required: an array, all of whose items have one type. */
const corral_json *corral_field_array(const corral_json *object, const char *name, corral_json_type items, size_t least, size_t most);
/* Required: a value of any type. */
const corral_json *corral_field_value(const corral_json *object, const char *name);
/* An error with status 400 if the object has other members. `names` ends with NULL. */
void corral_field_names(const corral_json *object, const char *const *names);

/* Text that grows. It begins as {0}. */
typedef struct {
  char *data;
  size_t length, capacity;
} corral_text;

/* Writes as printf does. */
void corral_print(corral_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes a quoted JSON string. */
void corral_print_string(corral_text *text, const void *string, size_t length);

/* Memory that stays until the request ends; ends the plugin if there is none. */
void *corral_allocate(size_t size);
/* Whether bytes are UTF-8. */
bool corral_is_utf8(const void *bytes, size_t length);

#endif
