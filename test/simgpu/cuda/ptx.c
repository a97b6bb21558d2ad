// SPDX-License-Identifier: Apache-2.0
//
// ptx.c: what a PTX text defines: kernels with their parameters, and variables. The
// grammar is that of NVIDIA's "Parallel Thread Execution ISA".
//
// Invariants:
// - Function bodies are skipped: only their braces, strings and comments are checked.
// - Whatever else is not PTX is INVALID_PTX.
// - Comments that begin with "// simgpu: " are visited when the text is known to be good.
#include "image.h"

#include <string.h>

#define MOST_PARAMETER_BYTES 32764u

struct reader {
    const char *at, *end;
    const char *token;  // the newest token, and its size; 0 at the end of the text
    size_t size;
    bool bad;  // an unterminated comment or string
};

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

// skip_to moves behind the next occurrence of mark.
static bool skip_to(struct reader *r, const char *mark) {
    size_t n = strlen(mark);
    for (; (size_t)(r->end - r->at) >= n; r->at++)
        if (memcmp(r->at, mark, n) == 0) {
            r->at += n;
            return true;
        }
    r->at = r->end;
    return false;
}

static void skip_blanks(struct reader *r) {
    while (r->at < r->end) {
        size_t left = (size_t)(r->end - r->at);
        if (memchr(" \t\r\n\f\v", *r->at, 6)) {
            r->at++;
        } else if (left >= 2 && memcmp(r->at, "//", 2) == 0) {
            skip_to(r, "\n");
        } else if (left >= 2 && memcmp(r->at, "/*", 2) == 0) {
            r->at += 2;
            if (!skip_to(r, "*/")) r->bad = true;
        } else {
            return;
        }
    }
}

static void skip_string(struct reader *r) {
    for (r->at++; r->at < r->end && *r->at != '"'; r->at++)
        if (*r->at == '\\' && r->at + 1 < r->end) r->at++;
    if (r->at < r->end) r->at++;
    else r->bad = true;
}

// next reads a directive, a name, a number, a string, or one other character; false at
// the end of the text.
static bool next(struct reader *r) {
    skip_blanks(r);
    r->token = r->at;
    if (r->at < r->end) {
        char first = *r->at;
        bool number = is_digit(first);
        if (first == '"') {
            skip_string(r);
        } else {
            r->at++;
            if (number || is_letter(first) || first == '.')
                while (r->at < r->end && (is_letter(*r->at) || is_digit(*r->at) || (number && *r->at == '.'))) r->at++;
        }
    }
    r->size = (size_t)(r->at - r->token);
    return r->size != 0 && !r->bad;
}

static bool is(const struct reader *r, const char *text) {
    return r->size == strlen(text) && memcmp(r->token, text, r->size) == 0;
}

static bool is_name(const struct reader *r) { return r->size && is_letter(*r->token); }
static bool is_directive(const struct reader *r) { return r->size > 1 && *r->token == '.'; }

static bool is_in(const struct reader *r, const char *const *words) {
    while (*words && !is(r, *words)) words++;
    return *words;
}

// follows reads the next token if it is this text.
static bool follows(struct reader *r, const char *text) {
    struct reader before = *r;
    if (next(r) && is(r, text)) return true;
    *r = before;
    return false;
}

static bool number(struct reader *r, size_t *value) {
    *value = 0;
    if (!next(r) || !is_digit(*r->token)) return false;
    bool hex = r->size > 2 && r->token[0] == '0' && (r->token[1] | 32) == 'x';
    for (size_t i = hex ? 2 : 0; i < r->size; i++) {
        char c = r->token[i], low = (char)(c | 32);
        unsigned digit = is_digit(c) ? (unsigned)(c - '0') : hex && low >= 'a' && low <= 'f' ? (unsigned)(low - 'a' + 10) : 16;
        if (digit == 16 && (c == 'U' || c == 'u') && i + 1 == r->size) break;
        if (digit == 16 || *value > (SIZE_MAX >> 8)) return false;
        *value = *value * (hex ? 16 : 10) + digit;
    }
    return true;
}

static bool multiply(size_t *size, size_t by) {
    return !__builtin_mul_overflow(*size, by, size) && *size <= SIZE_MAX / 2;
}

// until skips to a token of these characters outside of brackets, which is read too.
static bool until(struct reader *r, const char *ends, size_t *elements) {
    unsigned depth = 0;
    bool value = false;
    while (next(r)) {
        char c = r->size == 1 ? *r->token : 0;
        if (!depth && c && strchr(ends, c)) return true;
        if (c == '{' || c == '(' || c == '[') {
            depth++;
        } else if (c == '}' || c == ')' || c == ']') {
            if (!depth--) return false;
            if (!depth && elements && value) ++*elements;
        } else if (c == ',' && depth == 1 && elements) {
            ++*elements;
        }
        if (depth) value = c != ',' && (c != '{' || depth > 1);
    }
    return false;
}

static bool body(struct reader *r) {  // behind its first brace
    for (unsigned depth = 1; depth;) {
        if (!next(r)) return false;
        if (is(r, "{")) depth++;
        if (is(r, "}")) depth--;
    }
    return true;
}

static size_t type_size(const struct reader *r) {
    static const struct {
        const char *names;
        size_t size;
    } types[] = {
        {".b8 .u8 .s8 ", 1},
        {".b16 .u16 .s16 .f16 .bf16 ", 2},
        {".b32 .u32 .s32 .f32 .f16x2 .bf16x2 .tf32 ", 4},
        {".b64 .u64 .s64 .f64 .texref .samplerref .surfref ", 8},
        {".b128 ", 16},
    };
    char word[16];
    if (r->size + 2 > sizeof word) return 0;
    memcpy(word, r->token, r->size);
    memcpy(word + r->size, " ", 2);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (is_directive(r) && strstr(types[i].names, word)) return types[i].size;
    return 0;
}

struct variable {
    const char *name;
    size_t name_size, type, size, alignment;
    bool managed, open;  // open: its first dimension is its initializer's
    bool handle;         // of a texture, a sampler or a surface
};

// declared reads what stands between the state space and the name; the name is read too.
static bool declared(struct reader *r, struct variable *v) {
    static const char *const vectors[] = {".v2", ".v4", ".v8", NULL}, *const handles[] = {".texref", ".samplerref", ".surfref", NULL},
                      *const pointers[] = {".ptr", ".global", ".const", ".shared", ".local", NULL};
    size_t vector = 1;
    *v = (struct variable){0};
    while (next(r)) {
        if (is(r, ".align")) {
            size_t to;
            if (!number(r, &to) || !to || (to & (to - 1))) return false;
            if (!v->type) v->alignment = to;  // or what it points to is aligned so
        } else if (is(r, ".attribute")) {
            if (!next(r) || !is(r, "(")) return false;
            while (next(r) && !is(r, ")")) v->managed |= is(r, ".managed");
        } else if (is_in(r, vectors)) {
            vector = (size_t)(r->token[2] - '0');
        } else if (!v->type && type_size(r)) {
            v->type = type_size(r);
            v->handle = is_in(r, handles);
        } else if (!is_in(r, pointers)) {
            break;
        }
    }
    v->type *= vector;
    if (!v->alignment) v->alignment = v->type;
    return v->type && is_name(r);
}

// named reads the dimensions behind a name, and the token that follows.
static bool named(struct reader *r, struct variable *v) {
    v->name = r->token;
    v->name_size = r->size;
    v->size = v->type;
    v->open = false;
    while (next(r) && is(r, "[")) {
        size_t n;
        if (follows(r, "]")) {
            v->open = true;
        } else if (!number(r, &n) || !n || !multiply(&v->size, n) || !follows(r, "]")) {
            return false;
        }
    }
    return !r->bad;
}

static CUresult kernel(struct reader *r, const struct ptx_visitor *v) {
    struct ptx_kernel k;
    size_t offset = 0;
    if (!next(r) || !is_name(r)) return CUDA_ERROR_INVALID_PTX;
    k.name = r->token;
    k.name_size = r->size;
    k.count = 0;
    bool more = follows(r, "(") && !follows(r, ")");
    while (more) {
        struct variable p;
        if (!follows(r, ".param") || !declared(r, &p) || !named(r, &p) || p.open || !(is(r, ",") || is(r, ")")) ||
            k.count == sizeof k.sizes / sizeof *k.sizes)
            return CUDA_ERROR_INVALID_PTX;
        offset = (offset + p.alignment - 1) & ~(p.alignment - 1);
        if (p.size > MOST_PARAMETER_BYTES || offset + p.size > MOST_PARAMETER_BYTES) return CUDA_ERROR_INVALID_PTX;
        k.offsets[k.count] = (uint32_t)offset;
        k.sizes[k.count++] = (uint32_t)p.size;
        offset += p.size;
        more = is(r, ",");
    }
    while (!follows(r, "{")) {  // directives to the compiler
        if (!next(r) || !(is_directive(r) || is_digit(*r->token) || is(r, ","))) return CUDA_ERROR_INVALID_PTX;
        if (is(r, ".pragma") && !until(r, ";", NULL)) return CUDA_ERROR_INVALID_PTX;
    }
    return body(r) ? v->kernel(v->to, &k) : CUDA_ERROR_INVALID_PTX;
}

static bool function(struct reader *r) {
    bool has_name = false;
    while (next(r) && !is(r, ";")) {
        if (is(r, "{")) return has_name && body(r);
        if (is(r, "(")) {
            if (!until(r, ")", NULL)) return false;
        } else if (is(r, ".pragma")) {
            if (!until(r, ";", NULL)) return false;
        } else if (is_name(r)) {
            has_name = true;
        } else if (!is_directive(r) && !is_digit(*r->token) && !is(r, ",")) {
            return false;
        }
    }
    return has_name && is(r, ";") && !r->bad;
}

// globals reads all variables of one declaration; only what is defined here is visited.
// globals reads all variables of one declaration; only what is defined here is visited.
static CUresult globals(struct reader *r, const struct ptx_visitor *v, bool defined) {
    struct variable one;
    if (!declared(r, &one)) return CUDA_ERROR_INVALID_PTX;
    for (;;) {
        size_t elements = 0;
        if (!is_name(r) || !named(r, &one)) return CUDA_ERROR_INVALID_PTX;
        if (is(r, "=") && !until(r, ",;", &elements)) return CUDA_ERROR_INVALID_PTX;
        if (one.open && defined && (!elements || !multiply(&one.size, elements))) return CUDA_ERROR_INVALID_PTX;
        if (!is(r, ",") && !is(r, ";")) return CUDA_ERROR_INVALID_PTX;
        if (defined && !one.handle) {
            CUresult ret = v->global(v->to, &(struct ptx_global){one.name, one.name_size, one.size, one.managed});
            if (ret != CUDA_SUCCESS) return ret;
        }
        if (is(r, ";")) return CUDA_SUCCESS;
        next(r);
    }
}

static CUresult definitions(struct reader *r, const struct ptx_visitor *v) {
    static const char *const linkage[] = {".visible", ".weak", ".common", NULL}, *const other[] = {".shared", ".local", ".tex", NULL};
    bool defined = true, version = false;
    CUresult ret = CUDA_SUCCESS;
    while (ret == CUDA_SUCCESS && next(r)) {
        bool ok = true, alone = true;
        if (is(r, ".version")) {
            ok = next(r) && is_digit(*r->token) && memchr(r->token, '.', r->size);
            version = true;
        } else if (!version) {
            ok = false;
        } else if (is(r, ".target")) {
            do ok = next(r) && is_name(r);
            while (ok && follows(r, ","));
        } else if (is(r, ".address_size")) {
            size_t bits;
            ok = number(r, &bits) && bits == 64;
        } else if (is(r, ".pragma") || is(r, ".alias")) {
            ok = until(r, ";", NULL);
        } else if (is(r, ".file")) {
            skip_to(r, "\n");
        } else if (is(r, ".section")) {
            ok = next(r) && next(r) && is(r, "{") && body(r);
        } else if (is(r, ".entry")) {
            ret = kernel(r, v);
        } else if (is(r, ".func")) {
            ok = function(r);
        } else if (is(r, ".global") || is(r, ".const")) {
            ret = globals(r, v, defined);
        } else if (is_in(r, other)) {
            ok = until(r, ";", NULL);
        } else {
            ok = is(r, ".extern") || is_in(r, linkage);
            alone = false;
            if (is(r, ".extern")) defined = false;
        }
        if (alone) defined = true;
        if (!ok) ret = CUDA_ERROR_INVALID_PTX;
    }
    return ret == CUDA_SUCCESS && (r->bad || !version) ? CUDA_ERROR_INVALID_PTX : ret;
}

static CUresult comments(struct reader *r, const struct ptx_visitor *v) {
    static const char mark[] = "// simgpu: ";
    while (skip_to(r, mark)) {
        const char *text = r->at;
        skip_to(r, "\n");
        size_t n = (size_t)(r->at - text);
        while (n && memchr("\r\n", text[n - 1], 2)) n--;
        CUresult ret = v->comment(v->to, text, n);
        if (ret != CUDA_SUCCESS) return ret;
    }
    return CUDA_SUCCESS;
}

CUresult ptx_read(const char *text, size_t size, const struct ptx_visitor *v, unsigned *line) {
    struct reader r = {.at = text, .end = text + size};
    CUresult ret = definitions(&r, v);
    if (ret == CUDA_SUCCESS) {
        r.at = text;
        ret = comments(&r, v);
    }
    *line = 1;
    for (const char *p = text; p < r.at; p++) *line += *p == '\n' && p + 1 < r.at;
    return ret;
}

bool ptx_begins(const char *text, size_t size) {
    struct reader r = {.at = text, .end = text + size};
    return next(&r) && is(&r, ".version");
}
