/* Sentio's feature builder as its operators are defined: one column at a time, float32 except where it has a double.
 *
 * Plain C, one loop per operator, to be compiled with -O2 (never -ffast-math: the definition has NaN in it). The order of operations
 * and of comparisons is part of the definition, as what a NaN does follows from them: a comparison with it is false, so a bar is
 * skipped, counts as 0, or spoils what follows. `larger` and `extreme` compare as std::max and std::max_element do. Every operator
 * fills a column that begins as zeros. The result is row-major. `by_row` keeps all columns and writes the rows at the end;
 * otherwise each column goes into the matrix as soon as it is there. A source is made once and shared by its features.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IDENT, LOGRET, MOMENTUM, ROC, SMA, EMA, VOLATILITY, PARKINSON, GARMAN_KLASS, RSI, ZWIN, ATR, BOLLINGER_UPPER,
       BOLLINGER_MIDDLE, BOLLINGER_LOWER, MACD_LINE, MACD_SIGNAL, MACD_HISTOGRAM, STOCHASTIC_K, STOCHASTIC_D, WILLIAMS_R, CCI,
       ADX, OBV, VPT, AD_LINE, MFI, SPREAD_BP, PRICE_IMPACT, ORDER_FLOW, MARKET_DEPTH, BID_ASK_RATIO };

typedef struct { int op, source, window, fast, slow, signal, d_period; float k; } feature;
typedef struct { long n; const float *o, *h, *l, *c, *v; } bars;

static float *column(long n) { return calloc(n ? n : 1, sizeof(float)); }
static float larger(float a, float b) { return a < b ? b : a; }

/* The largest (sign 1) or smallest (sign -1) of x[from ... to]: the first value, or a later one that beats all before it. */
static float extreme(const float *x, long from, long to, float sign) {
    float found = x[from];
    for (long j = from + 1; j <= to; j++) if (sign * found < sign * x[j]) found = x[j];
    return found;
}

static void logret(const float *x, long n, float *y) {
    for (long i = 1; i < n; i++)
        y[i] = logf(x[i] < 1e-12f ? 1e-12f : x[i]) - logf(x[i - 1] < 1e-12f ? 1e-12f : x[i - 1]);
}

static void sma(const float *x, long n, int w, float *y) {
    if (w <= 1) { memcpy(y, x, n * sizeof(float)); return; }
    double s = 0;
    for (long i = 0; i < n; i++) {
        s += x[i];
        if (i >= w) s -= x[i - w];
        if (i >= w - 1) y[i] = (float)(s / w);
    }
}

static void ema(const float *x, long n, int w, float *y) {
    float k = 2.0f / (w + 1), e = 0;
    for (long i = 0; i < n; i++) y[i] = e = i ? k * x[i] + (1.0f - k) * e : x[i];
}

static void volatility(const float *x, long n, int w, float *y) {
    double s = 0, s2 = 0;
    for (long i = 0; i < n; i++) {
        if (i < w) { s += x[i]; s2 += x[i] * x[i]; continue; }
        double mean = s / w, var = s2 / w - mean * mean;
        y[i] = (float)sqrt(var > 0 ? var : 0);
        s += x[i] - x[i - w];
        s2 += x[i] * x[i] - x[i - w] * x[i - w];
    }
}

static void rsi(const float *x, long n, int w, float *y) {
    float up = 0, dn = 0;
    for (long i = 1; i < n; i++) {
        float d = x[i] - x[i - 1], gain = d < 0 ? 0 : d, loss = -d < 0 ? 0 : -d;
        if (i <= w) {
            up += gain; dn += loss;
            if (i == w) { up /= w; dn /= w; }
            continue;
        }
        up = (up * (w - 1) + gain) / w;
        dn = (dn * (w - 1) + loss) / w;
        float rs = dn > 1e-12f ? up / dn : 0;
        y[i] = 100.0f - 100.0f / (1.0f + rs);
    }
}

static void zwin(const float *x, long n, int w, float *y) {
    double *s = malloc((n + 1) * sizeof(double)), *s2 = malloc((n + 1) * sizeof(double));
    s[0] = s2[0] = 0;
    for (long i = 0; i < n; i++) { s[i + 1] = s[i] + x[i]; s2[i + 1] = s2[i] + x[i] * x[i]; }
    for (long i = w; i < n; i++) {
        double mean = (s[i + 1] - s[i + 1 - w]) / w, var = (s2[i + 1] - s2[i + 1 - w]) / w - mean * mean;
        float sd = (float)sqrt(var > 0 ? var : 0);
        y[i] = sd > 1e-8f ? (float)((x[i] - mean) / sd) : 0.0f;
    }
    free(s); free(s2);
}

static void true_range(bars b, float *y) {
    for (long i = 1; i < b.n; i++)
        y[i] = larger(larger(b.h[i] - b.l[i], fabsf(b.h[i] - b.c[i - 1])), fabsf(b.l[i] - b.c[i - 1]));
}

static void atr(bars b, int w, float *y) {
    float *tr = column(b.n), a = 0;
    true_range(b, tr);
    for (long i = 1; i < b.n; i++) {
        if (i <= w) { a += tr[i]; if (i == w) y[i] = a /= w; continue; }
        y[i] = a = (a * (w - 1) + tr[i]) / w;
    }
    free(tr);
}

static void range_volatility(bars b, int w, int garman_klass, float *y) {
    float *term = column(b.n);
    for (long i = garman_klass ? 1 : 0; i < b.n; i++) {
        if (!(b.h[i] > 0 && b.l[i] > 0)) continue;
        float hl = logf(b.h[i] / b.l[i]);
        if (!garman_klass) { term[i] = hl * hl; continue; }
        if (!(b.o[i] > 0 && b.c[i] > 0)) continue;
        float co = logf(b.c[i] / b.o[i]);
        term[i] = 0.5f * hl * hl - (float)(2 * M_LN2 - 1) * co * co;
    }
    sma(term, b.n, w, y);
    for (long i = 0; i < b.n; i++) y[i] = sqrtf(garman_klass ? larger(0, y[i]) : y[i] * (float)(1 / (4 * M_LN2)));
    free(term);
}

static void bollinger(const float *x, long n, int w, int op, float k, float *y) {
    float *mean = column(n), *sd = column(n);
    sma(x, n, w, mean); volatility(x, n, w, sd);
    for (long i = w; i < n; i++)
        y[i] = op == BOLLINGER_MIDDLE ? mean[i] : op == BOLLINGER_UPPER ? mean[i] + k * sd[i] : mean[i] - k * sd[i];
    free(mean); free(sd);
}

static void macd(const float *x, long n, feature f, float *y) {
    float *fast = column(n), *slow = column(n);
    ema(x, n, f.fast, fast); ema(x, n, f.slow, slow);
    for (long i = 0; i < n; i++) fast[i] -= slow[i];
    if (f.op == MACD_LINE) memcpy(y, fast, n * sizeof(float)); else ema(fast, n, f.signal, y);
    if (f.op == MACD_HISTOGRAM) for (long i = 0; i < n; i++) y[i] = fast[i] - y[i];
    free(fast); free(slow);
}

static void stochastic(bars b, int w, int williams, float *y) {
    for (long i = w; i < b.n; i++) {
        float hh = extreme(b.h, i - w, i, 1), ll = extreme(b.l, i - w, i, -1);
        if (hh > ll) y[i] = williams ? (hh - b.c[i]) / (hh - ll) * -100.0f : (b.c[i] - ll) / (hh - ll) * 100.0f;
    }
}

static void typical(bars b, float *y) { for (long i = 0; i < b.n; i++) y[i] = (b.h[i] + b.l[i] + b.c[i]) / 3.0f; }

static void cci(bars b, int w, float *y) {
    float *tp = column(b.n), *mean = column(b.n);
    typical(b, tp); sma(tp, b.n, w, mean);
    for (long i = w; i < b.n; i++) {
        float dev = 0;
        for (long j = i - w + 1; j <= i; j++) dev += fabsf(tp[j] - mean[i]);
        dev /= w;
        y[i] = dev > 1e-8f ? (tp[i] - mean[i]) / (dev * 0.015f) : 0;
    }
    free(tp); free(mean);
}

static void adx(bars b, int w, float *y) {
    float *tr = column(b.n), st = 0, sp = 0, sm = 0;
    true_range(b, tr);
    for (long i = 1; i < b.n; i++) {
        float up = b.h[i] - b.h[i - 1], dn = b.l[i - 1] - b.l[i];
        float p = up > dn && up > 0 ? up : 0, m = dn > up && dn > 0 ? dn : 0;
        st = (i <= w ? st : st - st / w) + tr[i];
        sp = (i <= w ? sp : sp - sp / w) + p;
        sm = (i <= w ? sm : sm - sm / w) + m;
        if (i < 2 * w) continue;
        float pdi = st > 0 ? sp / st * 100.0f : 0, mdi = st > 0 ? sm / st * 100.0f : 0, both = pdi + mdi;
        float dx = both > 0 ? fabsf(pdi - mdi) / both * 100.0f : 0, sum = 0;
        for (int j = 0; j < w; j++) sum += dx;  /* the mean of w times the same, but for rounding */
        y[i] = sum / w;
    }
    free(tr);
}

static void cumulative(bars b, int op, float *y) {
    float s = 0;
    for (long i = 1; i < b.n; i++) {
        float last = b.c[i - 1], range = b.h[i] - b.l[i];
        if (op == OBV) s += b.c[i] > last ? b.v[i] : b.c[i] < last ? -b.v[i] : 0;
        else if (op == VPT) s += last > 0 ? (b.c[i] - last) / last * b.v[i] : 0;
        else if (range > 1e-8f) s += ((b.c[i] - b.l[i]) - (b.h[i] - b.c[i])) / range * b.v[i];
        y[i] = s;
    }
}

static void mfi(bars b, int w, float *y) {
    float *tp = column(b.n);
    typical(b, tp);
    for (long i = w; i < b.n; i++) {
        float pos = 0, neg = 0;
        for (long j = i - w + 1; j <= i; j++) {
            float flow = tp[j] * b.v[j];
            if (tp[j] > tp[j - 1]) pos += flow;
            if (tp[j] < tp[j - 1]) neg += flow;
        }
        if (neg > 1e-8f) y[i] = 100.0f - 100.0f / (pos / neg + 1.0f);
    }
    free(tp);
}

static void microstructure(bars b, int op, float *y) {
    for (long i = op == PRICE_IMPACT ? 1 : 0; i < b.n; i++) {
        float h = b.h[i], l = b.l[i], c = b.c[i], v = b.v[i], range = h - l;
        if (op == SPREAD_BP) { float mid = (h + l) / 2.0f; if (mid > 1e-8f) y[i] = range / mid * 1e4f; }
        else if (op == PRICE_IMPACT) {
            float last = b.c[i - 1], root = sqrtf(v);
            if (root > 1e-8f && last > 1e-8f) y[i] = fabsf(c - last) / last / root * 1e6f;
        }
        else if (!(range > 1e-8f)) continue;
        else if (op == ORDER_FLOW) y[i] = ((c - l) / range - (h - c) / range) * v;
        else if (op == MARKET_DEPTH) { if (v > 1e-8f) y[i] = range / logf(v + 1.0f); }
        else { float p = (c - l) / range; y[i] = p / (1.0f - p + 1e-8f); }
    }
}

static void compute(bars b, const float *x, feature f, float *y) {
    long n = b.n;
    int w = f.window;
    switch (f.op) {
    case IDENT: memcpy(y, x, n * sizeof(float)); break;
    case LOGRET: logret(x, n, y); break;
    case MOMENTUM: for (long i = w; i < n; i++) y[i] = x[i] - x[i - w]; break;
    case ROC: for (long i = w; i < n; i++) { float p = x[i - w] < 1e-12f ? 1e-12f : x[i - w]; y[i] = (x[i] - p) / p * 100.0f; } break;
    case SMA: sma(x, n, w, y); break;
    case EMA: ema(x, n, w, y); break;
    case VOLATILITY: volatility(x, n, w, y); break;
    case PARKINSON: case GARMAN_KLASS: range_volatility(b, w, f.op == GARMAN_KLASS, y); break;
    case RSI: rsi(x, n, w, y); break;
    case ZWIN: zwin(x, n, w, y); break;
    case ATR: atr(b, w, y); break;
    case BOLLINGER_UPPER: case BOLLINGER_MIDDLE: case BOLLINGER_LOWER: bollinger(x, n, w, f.op, f.k, y); break;
    case MACD_LINE: case MACD_SIGNAL: case MACD_HISTOGRAM: macd(x, n, f, y); break;
    case STOCHASTIC_K: case WILLIAMS_R: stochastic(b, w, f.op == WILLIAMS_R, y); break;
    case STOCHASTIC_D: { float *k = column(n); stochastic(b, w, 0, k); sma(k, n, f.d_period, y); free(k); break; }
    case CCI: cci(b, w, y); break;
    case ADX: adx(b, w, y); break;
    case OBV: case VPT: case AD_LINE: cumulative(b, f.op, y); break;
    case MFI: mfi(b, w, y); break;
    default: microstructure(b, f.op, y);
    }
}

/* Prices are made float32 before anything else, and volumes whole numbers before that. Source 5 is the change of the logarithm. */
void build(const double *const raw[5], long n, const feature *features, int count, int emit_from, float pad, int by_row, float *out) {
    float *sources[6] = {0}, **columns = calloc(count, sizeof(float *));
    for (int s = 0; s < 5; s++) {
        sources[s] = column(n);
        if (raw[s]) for (long i = 0; i < n; i++) sources[s][i] = s == 4 ? (float)trunc(raw[s][i]) : (float)raw[s][i];
    }
    sources[5] = column(n);
    logret(sources[3], n, sources[5]);
    bars b = {n, sources[0], sources[1], sources[2], sources[3], sources[4]};
    for (int f = 0; f < count; f++) {
        float *y = columns[f] = column(n);
        compute(b, sources[features[f].source], features[f], y);
        if (by_row) continue;
        for (long i = 0; i < n; i++) out[i * count + f] = y[i];
        free(y);
    }
    if (by_row) {
        for (long i = 0; i < n; i++) for (int f = 0; f < count; f++) out[i * count + f] = columns[f][i];
        for (int f = 0; f < count; f++) free(columns[f]);
    }
    for (long i = 0; i < emit_from && i < n; i++) for (int f = 0; f < count; f++) out[i * count + f] = pad;
    for (int s = 0; s < 6; s++) free(sources[s]);
    free(columns);
}
