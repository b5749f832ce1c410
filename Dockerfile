# Image of the program, without a shell and without root. The server listens on all addresses of the container, and therefore
# does not start without authentication:
#
#     docker build -t a2a .
#     docker run -p 8080:8080 -v a2a:/data -e A2A_TOKEN=... a2a
#
# An image with commands for `exec` takes the program from this one: `COPY --from=a2a /usr/local/bin/a2a /usr/local/bin/`.
FROM rust:1.95-bookworm AS build
WORKDIR /source
COPY . .
RUN scripts/dist --image /image

FROM scratch
COPY --from=build /image /
USER 65532:65532
WORKDIR /data
VOLUME /data
ENV A2A_LISTEN=0.0.0.0:8080 A2A_STORE=sqlite:/data/a2a.db SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/a2a"]
CMD ["serve"]
