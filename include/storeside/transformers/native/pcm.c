/*
 * Converts one audio object to interleaved 16-bit PCM in one call: decodes and resamples with libav, without starting
 * a process, a filter graph, or a Python object per frame. Needs FFmpeg 5.1 or newer (AVChannelLayout).
 *
 * The input is untrusted: only listed containers are allowed, libav can open nothing but the given bytes, damage that
 * libav would conceal ends the conversion, and the length and size of the result are bounded.
 *
 * Samples equal those of `ffmpeg -ac C -ar R -c:a pcm_s16le` with the same libraries: that command also resamples in
 * one step with libswresample's defaults.
 */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/avstring.h>
#include <libavutil/channel_layout.h>
#include <libavutil/intreadwrite.h>
#include <libavutil/log.h>
#include <libavutil/mathematics.h>
#include <libswresample/swresample.h>

#include "signal.h"

#define PUBLIC __attribute__((visibility("default")))

enum { IO_BUFFER = 64 << 10, FIRST_BLOCK = 1 << 20, SAMPLE_BYTES = 2 };

/* Versions of libav assume different layouts for more unnamed channels than this. */
#define MOST_GUESSED 8

/* libav's WAV muxer writes only channel masks below this value. */
#define WAV_MASKS 0x40000

/* converter.py mirrors everything below. */

typedef enum {
    OK,
    UNREADABLE,     /* the object cannot be read: `error` is an errno */
    NOT_AUDIO,      /* not an allowed container: `error` is libav's, here and below */
    NO_STREAM,      /* a container without an audio stream */
    UNKNOWN_CODEC,  /* no decoder, or one of PyAV's */
    BAD_RATE,       /* `rate` is outside the target's source rates */
    DAMAGED,        /* decoding ended after `samples` */
    NO_SAMPLES,
    NOT_MIXABLE,    /* `channels` at `rate` cannot be resampled or mixed */
    FORM_CHANGED,   /* rate, channels or sample format differ from the first frame */
    TOO_LONG,       /* more than `max_seconds` */
    TOO_LARGE,      /* more than `max_bytes` */
    TOO_SHORT,      /* no sample is left at the target's rate */
    NO_MEMORY,
    NO_CHANNEL,     /* `channels` of the source, none of which is the target's `channel` */
} Status;

/* The wanted result and the accepted input. Sizes are in bytes and include `headroom`, the space for a header. */
typedef struct {
    const char *containers;
    const char *cells, *other_forms; /* of the table of engines */
    int64_t max_seconds;
    int64_t max_bytes;
    int64_t headroom;
    double expected_seconds; /* the exact length that the container declares, or 0 */
    int min_source_rate, max_source_rate;
    int rate, channels;
    int measures; /* whether to fill `signal` of the outcome */
    int keeps_packets;   /* whether libav must not drop samples that the container calls padding */
    int keeps_edges;     /* whether libav must not cut at the end of an edit list */
    int channel;         /* the only channel to convert, from 0, or -1 for all */
    double kept_seconds; /* the length after which only padding follows, or -1 */
    const char *head; /* read before the recording, in place of a header that libav does not know */
    int64_t head_bytes;
} Target;

/* The memory of the result, which grows as needed and is reused for the next object. */
typedef struct {
    uint8_t *data;
    int64_t capacity;
} Block;

typedef struct {
    int64_t size;       /* bytes of the result, including the headroom */
    int64_t samples;    /* decoded samples per channel */
    uint64_t mask;      /* WAV's channel mask of the result */
    int status, error;
    int rate, channels; /* of the source */
    char container[64], codec[32];
    SignalFacts signal; /* of the source */
} Outcome;

/* State that is reused for the next object. */
typedef struct {
    AVPacket *packet;
    AVFrame *frame, *picked;
    SwrContext *resampler;
    Signal *signal;
    AVChannelLayout from_layout, to_layout;
    int from_rate, from_format, to_rate;
} Converter;

typedef struct {
    const uint8_t *data; /* NULL: read from `descriptor` */
    int descriptor, error;
    const char *head;
    int64_t head_bytes;
    int64_t start, size, at; /* the recording's first byte, the size with the head, and the position in both */
} Source;

typedef struct {
    Converter *converter;
    const Target *target;
    Block *block;
    Outcome *outcome;
    Source source;
    AVIOContext *io;
    AVFormatContext *format;
    AVCodecContext *codec;
    AVStream *stream;
    AVChannelLayout first_layout;
    int first_rate, first_format;
    int channels; /* of the decoded frames, before one is picked */
    int64_t kept; /* samples per channel to keep */
} Job;

static Status fail(Job *job, Status status, int error)
{
    job->outcome->error = job->source.error ? job->source.error : error;
    return job->source.error ? UNREADABLE : status;
}

/* --- input: a custom AVIOContext, so that libav receives no file name */

static int source_read(void *opaque, uint8_t *into, int wanted)
{
    Source *source = opaque;
    int64_t left = source->size - source->at;
    ssize_t n = wanted < left ? wanted : left;
    if (n <= 0)
        return AVERROR_EOF;
    int64_t place = source->start + source->at - source->head_bytes;
    if (source->at < source->head_bytes) {
        if (n > source->head_bytes - source->at)
            n = source->head_bytes - source->at;
        memcpy(into, source->head + source->at, n);
    } else if (source->data) {
        memcpy(into, source->data + place, n);
    } else {
        do
            n = pread(source->descriptor, into, n, place);
        while (n < 0 && errno == EINTR);
        if (n < 0)
            return AVERROR(source->error = errno);
        if (!n)
            return AVERROR_EOF;
    }
    source->at += n;
    return (int)n;
}

static int64_t source_seek(void *opaque, int64_t offset, int whence)
{
    Source *source = opaque;
    whence &= ~AVSEEK_FORCE;
    if (whence == AVSEEK_SIZE)
        return source->size;
    if (whence == SEEK_CUR)
        offset += source->at;
    else if (whence == SEEK_END)
        offset += source->size;
    if (offset < 0)
        return AVERROR(EINVAL);
    return source->at = offset;
}

static int refuse_io(AVFormatContext *format, AVIOContext **io, const char *url, int flags, AVDictionary **options)
{
    (void)format, (void)io, (void)url, (void)flags, (void)options;
    return AVERROR(EPERM);
}

static Status open_format(Job *job)
{
    AVFormatContext *format = job->format = avformat_alloc_context();
    uint8_t *buffer = av_malloc(IO_BUFFER);
    AVIOContext *io = NULL;
    if (buffer)
        io = avio_alloc_context(buffer, IO_BUFFER, 0, &job->source, source_read, NULL, source_seek);
    if (!io)
        av_free(buffer);
    job->io = io;
    if (!format || !io)
        return NO_MEMORY;
    format->pb = io;
    format->io_open = refuse_io;
    format->format_whitelist = av_strdup(job->target->containers);
    format->protocol_whitelist = av_strdup("");
    if (!format->format_whitelist || !format->protocol_whitelist) /* NULL would allow all */
        return NO_MEMORY;
    AVDictionary *options = NULL;
    if (job->target->keeps_edges && av_dict_set(&options, "advanced_editlist", "0", 0) < 0)
        return NO_MEMORY;
    int error = avformat_open_input(&job->format, NULL, NULL, &options);
    av_dict_free(&options);
    if (error < 0)
        return fail(job, NOT_AUDIO, error);
    av_strlcpy(job->outcome->container, job->format->iformat->name, sizeof job->outcome->container);
    return OK;
}

static void close_format(Job *job)
{
    avformat_close_input(&job->format); /* does not close the input, which the caller owns */
    if (job->io)
        av_freep(&job->io->buffer);
    avio_context_free(&job->io);
}

static AVStream *first_audio(AVFormatContext *format)
{
    AVStream *found = NULL;
    for (unsigned i = 0; i < format->nb_streams; i++) {
        AVStream *stream = format->streams[i];
        if (!found && stream->codecpar->codec_type == AVMEDIA_TYPE_AUDIO)
            found = stream;
        else
            stream->discard = AVDISCARD_ALL;
    }
    return found;
}

/* Whether the header describes the stream completely, as in FLAC; otherwise libav must read ahead. */
static int is_complete(const AVFormatContext *format)
{
    if (format->nb_streams < 1 || strcmp(format->iformat->name, "flac"))
        return 0;
    const AVCodecParameters *form = format->streams[0]->codecpar;
    return form->codec_id == AV_CODEC_ID_FLAC && form->sample_rate > 0 && form->ch_layout.nb_channels > 0;
}

/* Whether the table of engines (audio/engines.py) gives this container and codec to this library. */
static int is_native(const Job *job, const AVCodecParameters *form, const char *codec)
{
    const char *demuxer = job->format->iformat->name, *floating = strstr(codec, "float"); /* as in mp3float */
    const uint32_t tag = form->codec_tag;
    int first = (int)strcspn(demuxer, ","), last = floating ? (int)(floating - codec) : (int)strlen(codec);
    char cell[96], rate[64], tagged[64];
    snprintf(cell, sizeof cell, "%.*s:%.*s", first, demuxer, last, codec);
    snprintf(rate, sizeof rate, "%.*s@%d", last, codec, form->sample_rate);
    snprintf(tagged, sizeof tagged, "%.*s:%c%c%c%c", first, demuxer, (int)(tag & 0xff), (int)(tag >> 8 & 0xff),
             (int)(tag >> 16 & 0xff), (int)(tag >> 24));
    return av_match_name(cell, job->target->cells) && !av_match_name(rate, job->target->other_forms) &&
           !av_match_name(tagged, job->target->other_forms);
}

/* Open the first audio stream and its decoder. */
static Status open_codec(Job *job)
{
    Outcome *outcome = job->outcome;
    int error;
    if (!is_complete(job->format) && (error = avformat_find_stream_info(job->format, NULL)) < 0)
        return fail(job, NOT_AUDIO, error);
    job->stream = first_audio(job->format);
    if (!job->stream)
        return fail(job, NO_STREAM, 0);
    const AVCodecParameters *form = job->stream->codecpar;
    const AVCodec *decoder = avcodec_find_decoder(form->codec_id);
    if (!decoder || !is_native(job, form, decoder->name))
        return fail(job, UNKNOWN_CODEC, 0);
    av_strlcpy(outcome->codec, decoder->name, sizeof outcome->codec);
    outcome->rate = form->sample_rate;
    outcome->channels = form->ch_layout.nb_channels;
    if (form->sample_rate < job->target->min_source_rate || form->sample_rate > job->target->max_source_rate)
        return fail(job, BAD_RATE, 0);
    job->codec = avcodec_alloc_context3(decoder);
    if (!job->codec)
        return NO_MEMORY;
    if ((error = avcodec_parameters_to_context(job->codec, form)) < 0)
        return fail(job, DAMAGED, error);
    job->codec->thread_count = 1; /* objects are processed in parallel */
    job->codec->pkt_timebase = job->stream->time_base; /* libav needs it to remove encoder delay and padding */
    job->codec->err_recognition = AV_EF_EXPLODE | AV_EF_CRCCHECK;
    if (job->target->keeps_packets)
        job->codec->flags2 |= AV_CODEC_FLAG2_SKIP_MANUAL;
    if ((error = avcodec_open2(job->codec, decoder, NULL)) < 0)
        return fail(job, DAMAGED, error);
    return OK;
}

/* --- output */

static Status reserve(Job *job, int64_t more)
{
    Block *block = job->block;
    int64_t needed = job->outcome->size + more;
    if (needed <= block->capacity)
        return OK;
    int64_t capacity = block->capacity ? block->capacity : FIRST_BLOCK;
    while (capacity < needed)
        capacity *= 2;
    uint8_t *data = realloc(block->data, capacity);
    if (!data)
        return NO_MEMORY;
    block->data = data;
    block->capacity = capacity;
    return OK;
}

static int same_form(const Job *job, const AVFrame *frame)
{
    return frame->sample_rate == job->first_rate && frame->format == job->first_format &&
           !av_channel_layout_compare(&frame->ch_layout, &job->first_layout);
}

/*
 * An equal number of channels stays unchanged, with the recording's layout if a WAV file can store it. Otherwise the
 * channels are mixed to the default layout for the target's number. A recording without channel names counts as having
 * the default layout for its number of channels, as in the ffmpeg command.
 */
static int choose_layouts(AVChannelLayout *from, AVChannelLayout *to, const AVChannelLayout *found, int wanted)
{
    int error;
    av_channel_layout_default(to, wanted);
    if (found->nb_channels == wanted) {
        if (wanted > 2 && found->order == AV_CHANNEL_ORDER_NATIVE && (error = av_channel_layout_copy(to, found)) < 0)
            return error;
        return av_channel_layout_copy(from, to);
    }
    if (found->order != AV_CHANNEL_ORDER_UNSPEC)
        return av_channel_layout_copy(from, found);
    if (found->nb_channels > MOST_GUESSED)
        return AVERROR(EINVAL);
    av_channel_layout_default(from, found->nb_channels);
    return 0;
}

/* Prepare the resampler for recordings with this frame's form; a second initialisation keeps the filter bank. */
static Status start_resampler(Job *job, const AVFrame *frame)
{
    Converter *converter = job->converter;
    const Target *target = job->target;
    AVChannelLayout from = {0}, to = {0};
    job->first_rate = job->outcome->rate = frame->sample_rate;
    job->first_format = frame->format;
    job->kept = target->kept_seconds >= 0 ? llrint(target->kept_seconds * frame->sample_rate) : INT64_MAX;
    job->outcome->channels = frame->ch_layout.nb_channels;
    if (frame->sample_rate < target->min_source_rate || frame->sample_rate > target->max_source_rate)
        return fail(job, BAD_RATE, 0);
    int error = av_channel_layout_copy(&job->first_layout, &frame->ch_layout);
    if (error < 0)
        return fail(job, NOT_MIXABLE, error);
    if ((error = choose_layouts(&from, &to, &frame->ch_layout, target->channels)) < 0)
        return fail(job, NOT_MIXABLE, error);
    job->outcome->mask = to.u.mask < WAV_MASKS ? to.u.mask : 0;
    if (!converter->resampler || converter->from_rate != frame->sample_rate ||
        converter->from_format != frame->format || converter->to_rate != target->rate ||
        av_channel_layout_compare(&converter->from_layout, &from) ||
        av_channel_layout_compare(&converter->to_layout, &to)) {
        swr_free(&converter->resampler);
        error = swr_alloc_set_opts2(&converter->resampler, &to, AV_SAMPLE_FMT_S16, target->rate, &from, frame->format,
                                    frame->sample_rate, 0, NULL);
        converter->from_rate = frame->sample_rate;
        converter->from_format = frame->format;
        converter->to_rate = target->rate;
        av_channel_layout_uninit(&converter->from_layout);
        converter->from_layout = from; /* ownership moves */
        converter->to_layout = to;
    } else {
        av_channel_layout_uninit(&from);
    }
    if (error >= 0)
        error = swr_init(converter->resampler);
    if (error < 0) {
        swr_free(&converter->resampler);
        return fail(job, NOT_MIXABLE, error);
    }
    return OK;
}

/* Resample `frame`, or flush the resampler if it is NULL; store the number of samples in `made`. */
static Status resample(Job *job, const AVFrame *frame, int *made)
{
    Outcome *outcome = job->outcome;
    SwrContext *resampler = job->converter->resampler;
    int given = frame ? frame->nb_samples : 0;
    int room = swr_get_out_samples(resampler, given);
    int64_t sample_bytes = (int64_t)job->target->channels * SAMPLE_BYTES;
    if (room < 0)
        return fail(job, NOT_MIXABLE, room);
    Status status = reserve(job, room * sample_bytes);
    if (status != OK)
        return status;
    uint8_t *into = job->block->data + outcome->size;
    *made = swr_convert(resampler, &into, room, frame ? (const uint8_t **)frame->extended_data : NULL, given);
    if (*made < 0)
        return fail(job, NOT_MIXABLE, *made);
    outcome->size += *made * sample_bytes;
    return outcome->size > job->target->max_bytes ? fail(job, TOO_LARGE, 0) : OK;
}

static Status start(Job *job, const AVFrame *frame)
{
    Status status = start_resampler(job, frame);
    if (status == OK && job->target->measures && !signal_start(job->converter->signal, frame, job->codec->codec_id))
        return NO_MEMORY;
    return status;
}

/* Drop the samples at the start of a frame that its decoder marks as the delay of the encoder, as libav 62 does in
 * Vorbis; that of libav 59 does not yield them. */
static void drop_delay(AVFrame *frame)
{
    const AVFrameSideData *mark = av_frame_get_side_data(frame, AV_FRAME_DATA_SKIP_SAMPLES);
    int planar = av_sample_fmt_is_planar(frame->format), channels = frame->ch_layout.nb_channels;
    int delay = mark && mark->size >= 4 ? (int)FFMIN(AV_RL32(mark->data), (uint32_t)frame->nb_samples) : 0;
    int bytes = delay * av_get_bytes_per_sample(frame->format) * (planar ? 1 : channels);
    for (int plane = 0; delay && plane < (planar ? channels : 1); plane++) {
        frame->extended_data[plane] += bytes;
        if (frame->extended_data != frame->data && plane < AV_NUM_DATA_POINTERS)
            frame->data[plane] += bytes;
    }
    frame->nb_samples -= delay;
}

/* Copy the target's channel of a frame into `picked`. */
static Status pick_channel(Job *job, const AVFrame *frame)
{
    AVFrame *picked = job->converter->picked;
    int channel = job->target->channel, channels = frame->ch_layout.nb_channels;
    int bytes = av_get_bytes_per_sample(frame->format), error;
    job->outcome->channels = channels;
    if (channel >= channels)
        return fail(job, NO_CHANNEL, 0);
    if (job->channels && job->channels != channels)
        return fail(job, FORM_CHANGED, 0);
    job->channels = channels;
    av_frame_unref(picked);
    picked->format = frame->format;
    picked->sample_rate = frame->sample_rate;
    picked->nb_samples = frame->nb_samples;
    picked->ch_layout = (AVChannelLayout)AV_CHANNEL_LAYOUT_MONO;
    if ((error = av_frame_get_buffer(picked, 0)) < 0)
        return error == AVERROR(ENOMEM) ? NO_MEMORY : fail(job, NOT_MIXABLE, error);
    if (av_sample_fmt_is_planar(frame->format)) {
        memcpy(picked->data[0], frame->extended_data[channel], (size_t)bytes * frame->nb_samples);
    } else {
        for (int64_t i = 0; i < frame->nb_samples; i++)
            memcpy(picked->data[0] + i * bytes, frame->data[0] + (i * channels + channel) * bytes, bytes);
    }
    return OK;
}

static Status take_frame(Job *job, AVFrame *frame)
{
    Status status = OK;
    int made;
    if (job->target->keeps_packets)
        drop_delay(frame);
    if (!frame->nb_samples)
        return OK;
    if (job->target->channel >= 0) {
        if ((status = pick_channel(job, frame)) != OK)
            return status;
        frame = job->converter->picked;
    }
    if (!job->first_rate)
        status = start(job, frame);
    else if (!same_form(job, frame))
        status = fail(job, FORM_CHANGED, 0);
    if (job->outcome->samples + frame->nb_samples > job->kept)
        frame->nb_samples = job->kept - job->outcome->samples;
    if (status != OK || !frame->nb_samples)
        return status;
    if (job->target->measures)
        signal_add(job->converter->signal, frame);
    status = resample(job, frame, &made);
    job->outcome->samples += frame->nb_samples;
    if (status == OK && job->outcome->samples > job->target->max_seconds * job->first_rate)
        return fail(job, TOO_LONG, 0);
    return status;
}

/*
 * Remove a part of a sample from the end of PCM, such as the end of a recording of whole sectors: libav rejects it.
 * Returns whether anything remains.
 */
static int keep_whole_samples(const Job *job, AVPacket *packet)
{
    enum AVCodecID codec = job->codec->codec_id;
    int block = job->codec->ch_layout.nb_channels * av_get_exact_bits_per_sample(codec) / 8;
    if (!packet || block < 1 || codec >= AV_CODEC_ID_ADPCM_IMA_QT) /* the first one after PCM */
        return 1;
    av_shrink_packet(packet, packet->size / block * block);
    return packet->size > 0;
}

/* Decode one packet, or flush the decoder if it is NULL. */
static Status take_packet(Job *job, AVPacket *packet)
{
    AVFrame *frame = job->converter->frame;
    if (!keep_whole_samples(job, packet))
        return OK;
    int error = avcodec_send_packet(job->codec, packet);
    if (error < 0)
        return fail(job, DAMAGED, error);
    for (;;) {
        error = avcodec_receive_frame(job->codec, frame);
        if (error == AVERROR(EAGAIN) || error == AVERROR_EOF)
            return OK;
        if (error < 0)
            return fail(job, DAMAGED, error);
        Status status = take_frame(job, frame);
        av_frame_unref(frame);
        if (status != OK)
            return status;
    }
}

static Status take_packets(Job *job)
{
    AVPacket *packet = job->converter->packet;
    for (;;) {
        int error = av_read_frame(job->format, packet);
        if (error == AVERROR_EOF && !job->source.error)
            return take_packet(job, NULL);
        if (error < 0)
            return fail(job, DAMAGED, error);
        Status status = packet->stream_index == job->stream->index ? take_packet(job, packet) : OK;
        av_packet_unref(packet);
        if (status != OK)
            return status;
    }
}

static Status finish(Job *job)
{
    const Outcome *outcome = job->outcome;
    if (!outcome->samples)
        return fail(job, NO_SAMPLES, 0);
    int made;
    do {
        Status status = resample(job, NULL, &made);
        if (status != OK)
            return status;
    } while (made > 0);
    if (job->target->measures)
        signal_finish(job->converter->signal, &job->outcome->signal);
    return outcome->size == job->target->headroom ? fail(job, TOO_SHORT, 0) : OK;
}

static int has_all(const Job *job)
{
    int64_t expected = llrint(job->target->expected_seconds * job->outcome->rate);
    return expected > 0 && job->outcome->samples >= expected;
}

static Status run(Job *job)
{
    Status status = reserve(job, 0);
    if (status == OK)
        status = open_format(job);
    if (status == OK)
        status = open_codec(job);
    if (status == OK)
        status = take_packets(job);
    if (status == DAMAGED && has_all(job)) /* damage after the end of the recording does not count */
        status = OK;
    return status == OK ? finish(job) : status;
}

/* --- the interface for Python */

/* Write the compiled and the running version of libavformat, libavcodec, libswresample and libavutil, in pairs. */
PUBLIC void storeside_versions(unsigned versions[8])
{
    const unsigned found[8] = {
        LIBAVFORMAT_VERSION_INT,   avformat_version(),   LIBAVCODEC_VERSION_INT, avcodec_version(),
        LIBSWRESAMPLE_VERSION_INT, swresample_version(), LIBAVUTIL_VERSION_INT,  avutil_version(),
    };
    memcpy(versions, found, sizeof found);
}

/* Return the source and library versions of this build, which show whether it is up to date. */
PUBLIC const char *storeside_built_from(void)
{
    return BUILT_FROM;
}

PUBLIC void storeside_close(Converter *converter)
{
    if (!converter)
        return;
    av_packet_free(&converter->packet);
    av_frame_free(&converter->frame);
    av_frame_free(&converter->picked);
    swr_free(&converter->resampler);
    signal_close(converter->signal);
    av_channel_layout_uninit(&converter->from_layout);
    free(converter);
}

/* Return a converter for one thread at a time; NULL if memory is exhausted. */
PUBLIC Converter *storeside_open(void)
{
    Converter *converter = calloc(1, sizeof *converter);
    if (!converter)
        return NULL;
    av_log_set_level(AV_LOG_QUIET); /* affects only this library's libav; errors are returned to the caller */
    converter->packet = av_packet_alloc();
    converter->frame = av_frame_alloc();
    converter->picked = av_frame_alloc();
    converter->signal = signal_open();
    if (converter->packet && converter->frame && converter->picked && converter->signal)
        return converter;
    storeside_close(converter);
    return NULL;
}

/* Convert the bytes from `start` up to, but without, `end` of `data`, or of the file `descriptor` if it is NULL. */
PUBLIC int storeside_convert(Converter *converter, const Target *target, const uint8_t *data, int descriptor,
                             int64_t start, int64_t end, Block *block, Outcome *outcome)
{
    Job job = {.converter = converter, .target = target, .block = block, .outcome = outcome,
               .source = {.data = data, .descriptor = descriptor, .start = start, .head = target->head,
                          .head_bytes = target->head_bytes, .size = end - start + target->head_bytes}};
    memset(outcome, 0, sizeof *outcome);
    outcome->size = target->headroom;
    Status status = run(&job);
    av_frame_unref(converter->frame);
    av_frame_unref(converter->picked);
    av_packet_unref(converter->packet);
    avcodec_free_context(&job.codec);
    close_format(&job);
    av_channel_layout_uninit(&job.first_layout);
    return outcome->status = status;
}

PUBLIC void storeside_free(Block *block)
{
    free(block->data);
    *block = (Block){0};
}

/* Write libav's text for an error. */
PUBLIC void storeside_reason(int error, char *into, size_t size)
{
    av_strerror(error, into, size);
}
