# Two images of the program, without root. The server listens on all addresses of the container, and therefore does not start without
# authentication. The default one has the program only, without a shell; the target `python` adds Python 3 and a shell, for agents
# that are scripts (`exec`):
#
#     docker build -t a2a .
#     docker build -t a2a:python --target python .
#     docker run -p 8080:8080 -v a2a:/data -e A2A_TOKEN=... a2a
FROM rust:1.95-bookworm AS build
WORKDIR /source
COPY . .
RUN scripts/dist image

FROM debian:bookworm-slim AS python
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libgcc-s1 python3 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /source/target/dist/image/usr/local/bin/a2a /usr/local/bin/
COPY --from=build --chown=65532:65532 /source/target/dist/image/data /data
RUN echo a2a:x:65532:65532::/data:/usr/sbin/nologin >>/etc/passwd
USER 65532:65532
WORKDIR /data
VOLUME /data
ENV A2A_LISTEN=0.0.0.0:8080 A2A_STORE=sqlite:/data/a2a.db
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/a2a"]
CMD ["serve"]

FROM scratch
COPY --from=build /source/target/dist/image /
USER 65532:65532
WORKDIR /data
VOLUME /data
ENV A2A_LISTEN=0.0.0.0:8080 A2A_STORE=sqlite:/data/a2a.db SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/a2a"]
CMD ["serve"]
