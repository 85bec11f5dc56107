/* The limit of transcoding: every file to 16-bit WAV samples in memory, one thread, bare libav, all contexts kept.
 * usage: audio_limit RATE CHANNELS FILE...
 * Prints CPU milliseconds per file. Nothing is checked that can be left out: it is not a transcoder but a limit. */
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/channel_layout.h>
#include <libswresample/swresample.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct file { uint8_t *bytes; size_t size, at; };

static int read_some(void *opaque, uint8_t *to, int wanted)
{
    struct file *file = opaque;
    size_t left = file->size - file->at;
    if (!left)
        return AVERROR_EOF;
    if ((size_t)wanted > left)
        wanted = (int)left;
    memcpy(to, file->bytes + file->at, wanted);
    file->at += wanted;
    return wanted;
}

static int64_t seek(void *opaque, int64_t offset, int whence)
{
    struct file *file = opaque;
    if (whence == AVSEEK_SIZE)
        return (int64_t)file->size;
    file->at = (size_t)(whence == SEEK_CUR ? (int64_t)file->at + offset : offset);
    return (int64_t)file->at;
}

static void fail(const char *what, const char *path)
{
    fprintf(stderr, "%s: %s\n", path, what);
    exit(1);
}

int main(int count, char **arguments)
{
    int rate = atoi(arguments[1]), channels = atoi(arguments[2]);
    SwrContext *resampler = NULL;
    AVPacket *packet = av_packet_alloc();
    AVFrame *frame = av_frame_alloc();
    uint8_t *result = malloc(256 << 20);
    struct timespec begin, end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    for (int number = 3; number < count; number++) {
        const char *path = arguments[number];
        struct file file = {0};
        FILE *stream = fopen(path, "rb");
        if (!stream)
            fail("cannot be opened", path);
        fseek(stream, 0, SEEK_END);
        file.size = ftell(stream);
        rewind(stream);
        file.bytes = malloc(file.size);
        if (fread(file.bytes, 1, file.size, stream) != file.size)
            fail("cannot be read", path);
        fclose(stream);

        AVFormatContext *input = avformat_alloc_context();
        input->pb = avio_alloc_context(av_malloc(65536), 65536, 0, &file, read_some, NULL, seek);
        if (avformat_open_input(&input, NULL, NULL, NULL) < 0)
            fail("is no audio", path);
        AVCodecParameters *parameters = input->streams[0]->codecpar;
        AVCodecContext *decoder = avcodec_alloc_context3(avcodec_find_decoder(parameters->codec_id));
        avcodec_parameters_to_context(decoder, parameters);
        decoder->thread_count = 1;
        if (avcodec_open2(decoder, NULL, NULL) < 0)
            fail("has no decoder", path);

        size_t at = 44;
        for (int more = 1; more;) {
            more = av_read_frame(input, packet) >= 0;
            avcodec_send_packet(decoder, more ? packet : NULL);
            av_packet_unref(packet);
            while (avcodec_receive_frame(decoder, frame) >= 0) {
                if (!resampler) {
                    AVChannelLayout layout;
                    av_channel_layout_default(&layout, channels);
                    swr_alloc_set_opts2(&resampler, &layout, AV_SAMPLE_FMT_S16, rate, &frame->ch_layout,
                                        frame->format, frame->sample_rate, 0, NULL);
                }
                if (!swr_is_initialized(resampler) && swr_init(resampler) < 0)
                    fail("cannot be resampled", path);
                uint8_t *to = result + at;
                int most = swr_get_out_samples(resampler, frame->nb_samples);
                int samples = swr_convert(resampler, &to, most, (const uint8_t **)frame->extended_data,
                                          frame->nb_samples);
                at += (size_t)samples * 2 * channels;
                av_frame_unref(frame);
            }
        }
        uint8_t *to = result + at;
        swr_convert(resampler, &to, swr_get_out_samples(resampler, 0), NULL, 0);
        swr_close(resampler);
        avcodec_free_context(&decoder);
        av_freep(&input->pb->buffer);
        avio_context_free(&input->pb);
        avformat_close_input(&input);
        free(file.bytes);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    double seconds = end.tv_sec - begin.tv_sec + 1e-9 * (end.tv_nsec - begin.tv_nsec);
    printf("%.4f\n", seconds * 1e3 / (count - 3));
    return 0;
}
